"""Learning rate and momentum at a step: hand-computed tables, and invariants over any run."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain.config.schema import (
    MomentumCycleConfig,
    PolynomialScheduleConfig,
    ScheduleConfig,
    StageConfig,
    StepScheduleConfig,
)
from fasttrain.schedule.schedule import Schedule, build_schedule
from fasttrain.stages import build_plan


def schedule(
    settings: ScheduleConfig,
    stages: list[tuple[int, int]],
    *,
    lr: float = 1.0,
    num_train: int = 10,
    world_size: int = 1,
    steps_per_stage: int | None = None,
) -> Schedule:
    """The schedule over ``stages``, each (epochs, batch size)."""
    rows = [StageConfig(epochs=n, px=32, min_area=0.25, batch_size=b, val_px=32) for n, b in stages]
    plan = build_plan(
        rows,
        num_train=num_train,
        world_size=world_size,
        device_batch_size=None,
        steps_per_stage=steps_per_stage,
    )
    config = SimpleNamespace(schedule=settings, optimizer=SimpleNamespace(lr=lr, momentum=0.9))
    return build_schedule(config, plan)


def settings(
    kind: str = "linear",
    warmup_epochs: float = 2,
    end_lr: float = 0.1,
    scale_with_batch: bool = False,
    momentum: MomentumCycleConfig | None = None,
    **own: object,
) -> ScheduleConfig:
    shared = {
        "kind": kind,
        "warmup_epochs": warmup_epochs,
        "end_lr": end_lr,
        "scale_with_batch": scale_with_batch,
        "momentum": momentum,
    }
    if kind == "step":
        return StepScheduleConfig(**shared, **{"drop_at_frac": [0.25, 0.5], "factor": 0.1, **own})
    if kind == "polynomial":
        return PolynomialScheduleConfig(**shared, **{"power": 2, **own})
    return ScheduleConfig(**shared)


IMAGENET = 1_281_167
CYCLE = MomentumCycleConfig(high=0.98, low=0.90)
# The DAWNBench entry of Alibaba (16 x 8 V100).
BATCH_32K = [(27, 32_768), (1, 16_384)]


@pytest.mark.parametrize(
    ("step", "lr", "momentum"),
    [
        (0, 25 / 560, 0.98 - 0.08 / 560),  # 0.0446
        (279, 12.5, 0.94),
        (559, 25, 0.90),
        (560, 24.9557143, 0.9001428571),
        # e = 21, half of the way down
        (839, 12.6, 0.94),
        # The batch halves: e = 27 + 1/79, which leaves 78/79 of an epoch of 14.
        (1_080, 0.2 + 24.8 * 78 / (79 * 14), 0.98 - 0.08 * 78 / (79 * 14)),
        (1_158, 0.2, 0.98),
    ],
)
def test_the_32k_recipe(step: int, lr: float, momentum: float) -> None:
    run = schedule(settings("linear", 14, 0.2, momentum=CYCLE), BATCH_32K, lr=25, num_train=IMAGENET)
    assert run.plan.total_steps == 1_159
    assert run.lr(step) == pytest.approx(lr, rel=1e-8)
    assert run.momentum(step) == pytest.approx(momentum, rel=1e-8)


def test_peak_and_end_are_exact() -> None:
    run = schedule(settings("linear", 14, 0.2, momentum=CYCLE), BATCH_32K, lr=25, num_train=IMAGENET)
    assert (run.lr(559), run.lr(1_158), run.momentum(1_158)) == (25, 0.2, 0.98)


# Ten epochs of one step, two of warm-up, peak 1: after step s, e = s + 1.
@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("linear", [0.5, 1, 0.8875, 0.775, 0.6625, 0.55, 0.4375, 0.325, 0.2125, 0.1]),
        (
            "cosine",
            # 0.1 + 0.45 (1 + cos(k 22.5 degrees)), k = 1 to 8
            [0.5, 1, 0.9657458, 0.8681981, 0.7222075, 0.55, 0.3777925, 0.2318019, 0.1342542, 0.1],
        ),
        (
            "polynomial",
            # 0.1 + 0.9 (k / 8)^2, k = 7 to 0
            [0.5, 1, 0.7890625, 0.60625, 0.4515625, 0.325, 0.2265625, 0.15625, 0.1140625, 0.1],
        ),
    ],
)
def test_curves_over_ten_steps(kind: str, table: list[float]) -> None:
    run = schedule(settings(kind), [(10, 10)])
    assert [run.lr(step) for step in range(10)] == pytest.approx(table, abs=1e-7)
    assert (run.lr(1), run.lr(9)) == (1, 0.1)


def test_step_drops_after_the_update_that_completes_the_share_and_ends_at_its_floor() -> None:
    run = schedule(settings("step", end_lr=0.05), [(10, 10)])
    # Shares 0.25 and 0.5 of the eight epochs after the warm-up are complete at e = 4 and e = 6.
    table = [0.5, 1, 1, 1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
    assert [run.lr(step) for step in range(10)] == pytest.approx(table)


def test_step_without_a_floor_ends_where_the_drops_lead() -> None:
    run = schedule(settings("step", warmup_epochs=0, end_lr=0, factor=0.5), [(4, 10)])
    assert [run.lr(step) for step in range(4)] == [1, 0.5, 0.25, 0.25]


def test_a_drop_is_not_early_by_rounding() -> None:
    # Ten steps an epoch: e = 2.1 after step 20, and 2.1 / 3 is 0.7000000000000001 in floating point.
    run = schedule(settings("step", warmup_epochs=0, end_lr=0, drop_at_frac=[0.7]), [(3, 10)], num_train=100)
    assert (run.lr(20), run.lr(21)) == (1, 0.1)


@pytest.mark.parametrize("kind", ["linear", "cosine", "polynomial"])
def test_without_warmup_the_first_update_is_on_the_curve(kind: str) -> None:
    run = schedule(settings(kind, warmup_epochs=0, end_lr=0), [(4, 10)])
    assert 0.5 < run.lr(0) < 1
    assert run.lr(3) == 0


def test_warmup_need_not_be_whole_epochs() -> None:
    run = schedule(settings(warmup_epochs=1.5, end_lr=0), [(3, 5)])
    # Two steps an epoch: e = 0.5, 1, 1.5, 2, 2.5, 3.
    assert [run.lr(step) for step in range(6)] == pytest.approx([1 / 3, 2 / 3, 1, 2 / 3, 1 / 3, 0])


def test_scale_with_batch_follows_the_batch() -> None:
    stages = [(2, 10), (2, 5), (1, 20)]
    plain = schedule(settings(), stages, num_train=20)
    scaled = schedule(settings(scale_with_batch=True), stages, num_train=20)
    # 2, 2, 4, 4 and 1 steps an epoch.
    factors = [1] * 4 + [0.5] * 8 + [2]
    assert [scaled.lr(s) for s in range(13)] == [f * plain.lr(s) for s, f in enumerate(factors)]
    assert (plain.lr(12), scaled.lr(12)) == (0.1, 0.2)


def test_momentum_cycle_over_ten_steps() -> None:
    run = schedule(settings(momentum=CYCLE), [(10, 10)])
    table = [0.94, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98]
    assert [run.momentum(step) for step in range(10)] == pytest.approx(table)


def test_momentum_without_a_cycle_is_the_optimizers() -> None:
    run = schedule(settings(), [(10, 10)])
    assert {run.momentum(step) for step in range(10)} == {0.9}


def test_steps_per_stage_sees_the_recipes_own_rates() -> None:
    whole = schedule(settings(momentum=CYCLE), [(3, 5), (4, 2)], num_train=20)
    part = schedule(settings(momentum=CYCLE), [(3, 5), (4, 2)], num_train=20, steps_per_stage=3)
    # Stage 1 starts at step 12 of the recipe (three epochs of four steps).
    seen = [0, 1, 2, 12, 13, 14]
    assert [part.lr(step) for step in range(6)] == [whole.lr(step) for step in seen]
    assert [part.momentum(step) for step in range(6)] == [whole.momentum(step) for step in seen]


@pytest.mark.parametrize("step", [-1, 10])
def test_there_is_no_update_outside_the_run(step: int) -> None:
    run = schedule(settings(momentum=CYCLE), [(10, 10)])
    with pytest.raises(ValueError, match="outside the run's steps 0 to 9"):
        run.lr(step)
    with pytest.raises(ValueError, match="outside the run's steps 0 to 9"):
        run.momentum(step)


@pytest.mark.parametrize("kind", ["linear", "cosine", "step", "polynomial"])
def test_a_schedule_can_be_sent_to_another_process(kind: str) -> None:
    run = schedule(settings(kind), [(10, 10)])
    assert pickle.loads(pickle.dumps(run)).lr(7) == run.lr(7)


@st.composite
def runs(draw: st.DrawFn) -> tuple[ScheduleConfig, list[tuple[int, int]], float, int]:
    """Any schedule over any stage table that passes the checks: settings, stages, peak, images."""
    stages = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([8, 16, 24, 48])), min_size=1, max_size=4))
    total = sum(epochs for epochs, _ in stages)
    peak = draw(st.floats(1e-3, 30))
    given_settings = settings(
        draw(st.sampled_from(["linear", "cosine", "step", "polynomial"])),
        warmup_epochs=draw(st.floats(0, total, exclude_max=True).filter(lambda w: w < total - 0.01)),
        end_lr=draw(st.floats(0, 1)) * peak,
        scale_with_batch=draw(st.booleans()),
        momentum=draw(st.sampled_from([None, CYCLE])),
    )
    return given_settings, stages, peak, draw(st.integers(48, 200))


@given(runs())
def test_the_rate_never_rises_after_warmup_unless_the_batch_grows_with_it(
    run: tuple[ScheduleConfig, list[tuple[int, int]], float, int],
) -> None:
    given_settings, stages, peak, num_train = run
    made = schedule(given_settings, stages, lr=peak, num_train=num_train)
    plan = made.plan
    for step in range(1, plan.total_steps):
        if plan.epochs_done(step - 1) < given_settings.warmup_epochs:
            continue
        now, before = plan.epoch_at(step), plan.epoch_at(step - 1)
        if not (given_settings.scale_with_batch and now.batch_size > before.batch_size):
            assert made.lr(step) <= made.lr(step - 1) * (1 + 1e-12)


@given(runs())
def test_the_rate_is_above_zero_at_first_at_most_the_peak_and_ends_at_its_end(
    run: tuple[ScheduleConfig, list[tuple[int, int]], float, int],
) -> None:
    given_settings, stages, peak, num_train = run
    made = schedule(given_settings, stages, lr=peak, num_train=num_train)
    last = made.plan.total_steps - 1
    scale = stages[-1][1] / stages[0][1] if given_settings.scale_with_batch else 1
    floor = peak * 0.1**2 if given_settings.kind == "step" else 0
    assert made.lr(last) == pytest.approx(scale * max(given_settings.end_lr, floor), rel=1e-12)
    assert last == 0 or made.lr(0) > 0
    largest = max(batch for _, batch in stages) / stages[0][1] if given_settings.scale_with_batch else 1
    assert all(made.lr(step) <= peak * largest * (1 + 1e-12) for step in range(last + 1))


@given(runs())
def test_momentum_stays_in_its_cycle_and_ends_high(
    run: tuple[ScheduleConfig, list[tuple[int, int]], float, int],
) -> None:
    given_settings, stages, peak, num_train = run
    made = schedule(given_settings, stages, lr=peak, num_train=num_train)
    values = [made.momentum(step) for step in range(made.plan.total_steps)]
    if given_settings.momentum is None:
        assert set(values) == {0.9}
    else:
        assert all(0.90 - 1e-12 <= value <= 0.98 for value in values)
        assert values[-1] == 0.98


@given(runs(), st.sampled_from([2, 4, 8]))
def test_ranks_do_not_change_the_rates(
    run: tuple[ScheduleConfig, list[tuple[int, int]], float, int], ranks: int
) -> None:
    given_settings, stages, peak, num_train = run
    alone = schedule(given_settings, stages, lr=peak, num_train=num_train)
    spread = schedule(given_settings, stages, lr=peak, num_train=num_train, world_size=ranks)
    assert alone.plan.total_steps == spread.plan.total_steps
    steps = range(alone.plan.total_steps)
    assert [alone.lr(step) for step in steps] == [spread.lr(step) for step in steps]
