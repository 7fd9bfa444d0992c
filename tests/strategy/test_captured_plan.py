"""The plan of captured steps: a few are timed before training, and stock DDP stays unless one wins by enough."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from fasttrain.strategy.accelerated import AcceleratedDDPStrategy
from fasttrain.strategy.plan import STOCK, CommPlan
from fasttrain.strategy.session import OTHER_SHAPE_STEPS, CommSession

SMALL, LARGE = CommPlan(bucket_mb=4.0, lean=True), CommPlan(bucket_mb=64.0, lean=True)


class FakeSession:
    """Takes plans and notes what was done with them."""

    def __init__(self, plans: list[CommPlan]) -> None:
        self.plans = plans
        self.applied: list[CommPlan] = []
        self.kept: list[float] = []
        self.ddp = SimpleNamespace(plan=STOCK, apply=self.apply)

    def plans_to_capture(self) -> list[CommPlan]:
        return self.plans

    def apply(self, plan: CommPlan) -> None:
        self.applied.append(plan)
        self.ddp.plan = plan

    def keep_captured(self, gain: float) -> None:
        self.kept.append(gain)


def choose(seconds: dict[CommPlan, float], plans: list[CommPlan]) -> tuple[CommPlan, FakeSession]:
    strategy = AcceleratedDDPStrategy()
    session = FakeSession(plans)
    strategy._session = session  # type: ignore[assignment]
    return strategy.choose_captured(lambda plan: seconds[plan]), session


def test_the_fastest_plan_is_in_force() -> None:
    best, session = choose({STOCK: 1.0, SMALL: 0.9, LARGE: 0.8}, [STOCK, SMALL, LARGE])
    assert best == LARGE
    assert session.applied == [STOCK, SMALL, LARGE, LARGE]
    assert session.kept == pytest.approx([0.2])


def test_stock_stays_where_little_is_won_or_a_plan_cannot_be_captured() -> None:
    best, session = choose({STOCK: 1.0, SMALL: 0.98, LARGE: math.inf}, [STOCK, SMALL, LARGE])
    assert best == STOCK
    assert session.ddp.plan == STOCK


def test_where_nothing_can_be_captured_steps_are_tuned_as_they_run() -> None:
    best, session = choose({STOCK: math.inf}, [STOCK, SMALL])
    assert best == STOCK
    assert session.applied == [STOCK]
    assert session.kept == []


def test_nothing_is_measured_where_there_is_one_plan() -> None:
    best, session = choose({}, [STOCK])
    assert (best, session.applied) == (STOCK, [])


def test_a_last_batch_of_another_shape_is_no_change_of_shape() -> None:
    session: Any = SimpleNamespace(_shape="full", _other_shape=(None, 0))

    def changed(shape: str) -> bool:
        return CommSession._has_changed(session, shape)

    assert [changed(shape) for shape in ("full", "last", "full", "last", "last", "full")] == [False] * 6
    assert [changed("other") for _ in range(OTHER_SHAPE_STEPS)] == [False, False, True]
    assert not changed("other")
