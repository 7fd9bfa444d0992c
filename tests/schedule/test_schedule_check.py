"""Schedules that cannot be run are refused in the user's words, with a line that mends them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fasttrain.config.schema import MomentumCycleConfig, ScheduleConfig, StageConfig, StepScheduleConfig
from fasttrain.schedule.check import check

LINEAR = ScheduleConfig(kind="linear", warmup_epochs=5, end_lr=0, scale_with_batch=False, momentum=None)
STEP = StepScheduleConfig(
    kind="step",
    warmup_epochs=5,
    end_lr=0,
    scale_with_batch=False,
    momentum=None,
    drop_at_frac=[0.333, 0.667, 0.889],
    factor=0.1,
)


def problems(schedule: ScheduleConfig, *, epochs: tuple[int, ...] = (13, 11, 3, 1)) -> list[tuple[str, str]]:
    stages = [StageConfig(epochs=n, px=32, min_area=0.25, batch_size=8, val_px=32) for n in epochs]
    config = SimpleNamespace(stages=stages, schedule=schedule, optimizer=SimpleNamespace(lr=2.0))
    return [(problem.what, problem.fix) for problem in check(config)]


@pytest.mark.parametrize(
    "schedule",
    [
        LINEAR,
        STEP,
        replace(LINEAR, warmup_epochs=0),
        replace(LINEAR, warmup_epochs=27.5),
        replace(LINEAR, end_lr=2.0),
        replace(LINEAR, momentum=MomentumCycleConfig(high=0.98, low=0.90)),
        replace(LINEAR, momentum=MomentumCycleConfig(high=0.9, low=0.9)),
    ],
)
def test_good_schedules_have_no_problems(schedule: ScheduleConfig) -> None:
    assert problems(schedule) == []


@pytest.mark.parametrize("warmup_epochs", [28, 90])
def test_warmup_must_end_before_the_run(warmup_epochs: float) -> None:
    assert problems(replace(LINEAR, warmup_epochs=warmup_epochs)) == [
        (
            f"schedule.warmup_epochs={warmup_epochs}: the stages have 28 epochs in all, "
            "and the warm-up must end before the run does",
            "schedule.warmup_epochs=5.6",
        )
    ]


def test_one_epoch_with_the_default_warmup_of_one() -> None:
    ((_, fix),) = problems(replace(LINEAR, warmup_epochs=1), epochs=(1,))
    assert fix == "schedule.warmup_epochs=0.2"


def test_no_stages_is_left_to_the_stage_tables_own_check() -> None:
    assert problems(LINEAR, epochs=()) == []


def test_the_end_must_not_be_above_the_peak() -> None:
    assert problems(replace(LINEAR, end_lr=2.5)) == [
        (
            "schedule.end_lr=2.5: above the peak, optimizer.lr=2; the learning rate would rise after the warm-up",
            "schedule.end_lr=0",
        )
    ]


@pytest.mark.parametrize(
    ("drops", "what", "fix"),
    [
        ([], "needs at least one drop", "schedule.drop_at_frac=[0.333,0.667,0.889], or schedule=linear"),
        ([0.5, 1.0], "more than 0 and less than 1", "schedule.drop_at_frac=[0.333,0.667,0.889]"),
        ([0, 0.5], "more than 0 and less than 1", "schedule.drop_at_frac=[0.333,0.667,0.889]"),
        ([30, 60, 80], "more than 0 and less than 1", "schedule.drop_at_frac=[0.333,0.667,0.889]"),
        ([0.6, 0.3], "drops must rise", "schedule.drop_at_frac=[0.3,0.6]"),
        ([0.3, 0.3, 0.6], "drops must rise", "schedule.drop_at_frac=[0.3,0.6]"),
    ],
)
def test_drops_are_rising_shares(drops: list[float], what: str, fix: str) -> None:
    ((said, offered),) = problems(replace(STEP, drop_at_frac=drops))
    shown = ",".join(f"{drop:g}" for drop in drops)
    assert said.startswith(f"schedule.drop_at_frac=[{shown}]: ")
    assert said.endswith(what)
    assert offered == fix


def test_momentum_high_must_not_be_below_low() -> None:
    assert problems(replace(LINEAR, momentum=MomentumCycleConfig(high=0.90, low=0.98))) == [
        (
            "schedule.momentum.high=0.9: below schedule.momentum.low=0.98; "
            "momentum is high where the learning rate is low",
            "schedule.momentum.high=0.98 schedule.momentum.low=0.9",
        )
    ]


def test_all_problems_come_at_once() -> None:
    bad = replace(
        STEP,
        warmup_epochs=40,
        end_lr=3,
        drop_at_frac=[2],
        momentum=MomentumCycleConfig(high=0.1, low=0.2),
    )
    assert [what.split("=")[0] for what, _ in problems(bad)] == [
        "schedule.warmup_epochs",
        "schedule.end_lr",
        "schedule.drop_at_frac",
        "schedule.momentum.high",
    ]
