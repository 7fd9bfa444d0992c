"""The tuner as a state machine: fed with step times that are written down here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fasttrain.config.schema import AcceleratedDDPConfig
from fasttrain.strategy.autotuner import MAX_ARMS, WATCH_STEPS, Autotuner
from fasttrain.strategy.candidates import candidates
from fasttrain.strategy.plan import STOCK, CommPlan
from fasttrain.strategy.settings import CommSettings

ARMS = [CommPlan(bucket_mb=float(size), streams=2) for size in range(1, 10)]


def tuner(
    arms: list[CommPlan] = ARMS, *, budget: int = 128, gain: float = 0.03, known: CommPlan | None = None
) -> Autotuner:
    return Autotuner(arms, budget_steps=budget, min_gain_frac=gain, drift_frac=0.1, known=known)


def run(machine: Autotuner, step_ms: Callable[[CommPlan], float]) -> list[tuple[CommPlan, int]]:
    """Feed a tuning to its verdict; what was run for how many steps."""
    ran = []
    while machine.segment is not None and not machine.verdicts:
        ran.append((machine.segment.plan, machine.segment.steps))
        machine.record(step_ms(machine.segment.plan))
    return ran


def test_a_whole_tuning_in_order() -> None:
    machine = tuner()
    ran = run(machine, lambda plan: 10.0 if plan == STOCK else 5.0 + (plan.bucket_mb or 0))
    first, second, final = ran[1:11], ran[11:15], ran[15:]
    assert ran[0] == (STOCK, 5)
    assert first == [(plan, 6) for plan in (STOCK, *ARMS)]
    # The best third, fastest first, stock DDP always among them.
    assert second == [(plan, 6) for plan in (STOCK, *ARMS[:3])]
    assert final == [(STOCK, 8), (ARMS[0], 8), (STOCK, 8), (ARMS[0], 8)]
    assert machine.verdicts[0].plan == ARMS[0]
    assert machine.verdicts[0].gain_frac == pytest.approx(0.4)


def test_the_smallest_budget_of_the_schema_is_a_whole_tuning() -> None:
    steps = sum(steps for _, steps in run(tuner(), lambda plan: 1.0))
    bound = AcceleratedDDPConfig.__dataclass_fields__["tune_budget_steps"].metadata["ge"]
    assert steps == bound == 121
    assert run(tuner(budget=bound), lambda plan: 1.0)[-1][1] == 8
    short = tuner(budget=bound - 1)
    run(short, lambda plan: 0.5 if plan == ARMS[0] else 1.0)
    assert short.verdicts[0].plan == STOCK
    assert "budget" in short.verdicts[0].reason


def test_stock_stays_where_the_gain_is_small_or_one_half_is_lost() -> None:
    small = tuner()
    run(small, lambda plan: 10.0 if plan == STOCK else 9.8)
    assert small.verdicts[0].plan == STOCK
    assert small.plan == STOCK
    assert small.segment is None
    times = iter([*[10.0] * 15, 10.0, 5.0, 6.0, 7.0])
    half = tuner()
    run(half, lambda plan: next(times))
    assert half.verdicts[0].plan == STOCK
    assert "both halves" in half.verdicts[0].reason


def test_other_inputs_in_the_middle_begin_the_round_anew() -> None:
    machine = tuner([ARMS[0]])
    machine.record(1.0)
    machine.record(1.0)
    assert machine.segment is not None
    assert machine.segment.plan == ARMS[0]
    machine.spoil()
    assert machine.segment.plan == STOCK
    run(machine, lambda plan: 1.0 if plan == STOCK else 0.5)
    assert machine.verdicts[0].plan == ARMS[0]


def test_a_plan_that_won_before_goes_straight_to_the_final() -> None:
    machine = tuner(known=ARMS[4])
    ran = run(machine, lambda plan: 1.0 if plan == STOCK else 0.5)
    assert [plan for plan, _ in ran] == [STOCK, STOCK, ARMS[4], STOCK, ARMS[4]]
    assert machine.verdicts[0].plan == ARMS[4]
    nothing = tuner(known=STOCK)
    assert len(run(nothing, lambda plan: 1.0)) == 1
    assert nothing.plan == STOCK


def test_a_tuned_step_that_becomes_slower_is_set_beside_stock_again() -> None:
    machine = tuner([ARMS[0]])
    run(machine, lambda plan: 1.0 if plan == STOCK else 0.5)
    assert machine.segment is not None
    assert (machine.segment.plan, machine.segment.steps, machine.segment.discard) == (ARMS[0], WATCH_STEPS, 480)
    machine.record(0.5)
    machine.record(0.54)
    assert machine.segment.plan == ARMS[0]
    machine.record(0.56)
    # A final of four turns: stock is faster now.
    for seconds in (0.4, 0.56, 0.4, 0.56):
        machine.record(seconds)
    assert machine.segment is None
    assert [verdict.plan for verdict in machine.verdicts] == [ARMS[0], STOCK]


def test_nothing_to_tune() -> None:
    machine = tuner([STOCK])
    run(machine, lambda plan: 1.0)
    assert machine.segment is None
    assert machine.plan == STOCK


@pytest.mark.parametrize("nodes", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"streams": 3},
        {"bucket_mb": 2.0},
        {"wire_dtype": "bf16"},
        {"hierarchical": "true"},
        {"hierarchical": "false"},
        {"split_mb": 0.5},
    ],
)
def test_candidates_keep_what_the_user_has_fixed(settings: dict[str, object], several: bool, nodes: bool) -> None:
    plans = candidates(CommSettings(**settings), several_streams=several, several_nodes=nodes)  # type: ignore[arg-type]
    assert 0 < len(plans) == len(set(plans)) <= MAX_ARMS
    assert STOCK not in plans
    for plan in plans:
        assert plan.wire == settings.get("wire_dtype", "none")
        assert plan.streams == settings.get("streams", plan.streams)
        assert settings.get("bucket_mb") in (None, plan.bucket_mb)
        if not several and "streams" not in settings:
            assert plan.streams == 1
        if not nodes or settings.get("hierarchical") == "false":
            assert not plan.hierarchical
        elif settings.get("hierarchical") == "true":
            assert plan.hierarchical
    if nodes and not settings:
        assert {plan.hierarchical for plan in plans} == {True, False}
