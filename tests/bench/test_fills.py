"""Trainings on files: a cache is filled once, what is decoded is read once before it counts, and the rest is short."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.bench.arguments import read_step_flags
from fasttrain.bench.arms import Arm, Shape, build_arms, measured_run
from fasttrain.bench.fills import cut_epochs, file_rows, served_px
from fasttrain.bench.step import measure_arm
from fasttrain.bench.training import Measured
from fasttrain.cli import main
from fasttrain.data.cache_plan import cache_px
from fasttrain.run import planning
from fasttrain.stages import build_plan
from fasttrain.strategy.world import World
from tests.bench.test_bench_step import figures_of
from tests.conftest import NUM_TRAIN

ALONE = World(rank=0, local_rank=0, size=1, local_size=1, launcher="self")

ArmOn = Callable[..., Arm]


@pytest.fixture
def arm_on_files(tiny_overrides: list[str]) -> ArmOn:
    """``arm_on_files("key=value", ...)`` is the one arm of 32 and 48 px that trains on the tiny images."""

    def arm(*words: str) -> Arm:
        flags = ["--data", "files", "--px", "32,48", "--batch", "8"]
        (only,) = build_arms(read_step_flags([*tiny_overrides, *words, *flags]))
        return only

    return arm


@pytest.mark.parametrize(
    ("served", "rows", "fills"),
    [
        ({96, 128, 224}, [96, 96, 96, 128, 128, 224, 224], {0}),
        (set(), [96, 96, 96, 128, 128, 128, 224, 224, 224], {0, 3, 6}),
        ({96, 128}, [96, 96, 96, 128, 128, 224, 224, 224], {0, 5}),
        ({128, 224}, [96, 96, 96, 128, 128, 128, 224, 224], {0, 3}),
    ],
)
def test_the_cache_is_filled_once_and_each_other_px_is_read_once(
    served: set[int], rows: list[int], fills: set[int]
) -> None:
    shapes = [Shape(px, 64) for px in (96, 128, 224)]
    found, found_fills = file_rows(shapes, repeats=2, served=served)
    assert [shape.px for shape in found] == rows
    assert found_fills == fills


def test_only_fills_are_whole_epochs(arm_on_files: ArmOn) -> None:
    stages = arm_on_files().run.config.stages
    plan = build_plan(stages, num_train=100, world_size=1, device_batch_size=None, steps_per_stage=None)
    # Two epochs of 16 images a step and one of 32: 7, 7 and 4 steps.
    cut = cut_epochs(plan, 5, fills={0})
    assert [(epoch.steps, epoch.full_steps, epoch.first_step) for epoch in cut.epochs] == [
        (7, 7, 0),
        (7, 7, 7),
        (4, 4, 14),
    ]
    cut = cut_epochs(plan, 5, fills={1})
    assert [(epoch.steps, epoch.full_steps, epoch.first_step) for epoch in cut.epochs] == [
        (5, 7, 0),
        (5, 7, 5),
        (4, 4, 10),
    ]
    assert cut.total_steps == 14


def test_the_cache_is_the_one_of_the_run(arm_on_files: ArmOn) -> None:
    arm = arm_on_files("data.cache=auto")
    images = planning.scan_images(arm.run.config, ALONE)
    short = measured_run(arm, repeats=9, steps=6, world_size=1, num_classes=16, images=images)
    own = cache_px(arm.run.config, NUM_TRAIN)
    assert short.run.config.data.cache_px == own
    assert short.run.config.trainer.validate_every_epochs is None
    sides = [32, own, own + 1]
    assert served_px(arm.run.config, sides, images) == {32, own}
    assert served_px(arm_on_files("data.cache=off").run.config, sides, images) == set()


@pytest.mark.parametrize(
    ("words", "epochs"),
    [
        # px, whether it only fills, steps: an epoch of the 64 images has 8.
        (["data.cache=auto"], [(32, True, 8), (32, False, 6), (32, False, 6), (48, False, 6), (48, False, 6)]),
        (
            ["data.cache=auto", "data.cache_px=32"],
            [(32, True, 8), (32, False, 6), (32, False, 6), (48, True, 8), (48, False, 6), (48, False, 6)],
        ),
    ],
)
def test_what_is_trained(arm_on_files: ArmOn, words: list[str], epochs: list[tuple[int, bool, int]]) -> None:
    found: list[Measured] = []
    warmup_s = measure_arm(arm_on_files(*words), ALONE, found.append, repeats=2, steps=6, num_classes=16)
    ends = [0, *(epoch.row.step for epoch in found)]
    steps = [after - before for before, after in itertools.pairwise(ends)]
    assert [(m.row.px, m.fills, n) for m, n in zip(found, steps, strict=True)] == epochs
    assert [m.rate is not None for m in found] == [not fills for _, fills, _ in epochs]
    assert [m.row.top1 is not None for m in found] == [False] * (len(found) - 1) + [True]
    assert warmup_s > 0


def test_each_training_of_a_bench_fills_once(
    tiny_overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "step.json"
    words = ["--data", "files", "--px", "32,48", "--batch", "8", "--steps", "6", "--repeats", "2", "--rounds", "2"]
    assert main(["bench", "step", *tiny_overrides, "data.cache=auto", *words, "--json", str(record)]) == 0
    found = figures_of(record)
    assert [found[f"step, {px} px, batch 8", "images/s"]["n"] for px in (32, 48)] == [2, 2]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    assert [line.partition(" | ")[0] for line in lines] == ["round 1/2", "round 2/2"]
    assert all("epochs that fill caches" in line for line in lines)
