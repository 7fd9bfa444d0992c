"""The hybrid's formula, and what is left of it when its adaptive part is off."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fasttrain.optimizer.build import hold_on_device
from fasttrain.optimizer.hybrid import HybridSGD
from fasttrain.optimizer.share import sgd_share, transition_end_epochs
from tests.optimizer.random_problem import RandomProblem, torch_sgd

DECAYS = [0.05] * 6 + [0.0] * 2


def hybrid(params: list[nn.Parameter], **changes: Any) -> HybridSGD:
    settings: dict[str, Any] = {
        "lr": 0.1,
        "transition_center_epochs": 2.0,
        "transition_period_epochs": 1.0,
        "rms_lr": 0.003,
    }
    groups = [{"params": params[:6], "weight_decay": 0.05}, {"params": params[6:], "weight_decay": 0.0}]
    return HybridSGD(groups, **(settings | changes))


# By hand, with center c = 3.1 and period p = 1.55: exp(-4) / 2 at 0, exp(-1) / 2 at c - p/2, 1/2 at c,
# 3/4 at c + p/4, 1 at c + p/2 = 3.875.
SHARES = [(0.0, 0.5 * math.exp(-4)), (2.325, 0.18393972), (3.1, 0.5), (3.4875, 0.75), (3.875, 1.0), (28.0, 1.0)]


@pytest.mark.parametrize(("epochs_done", "share"), SHARES)
def test_share_by_hand(epochs_done: float, share: float) -> None:
    assert sgd_share(epochs_done, 3.1, 1.55) == pytest.approx(share, rel=1e-7)


def test_share_is_continuous_with_matching_slopes() -> None:
    center, period, step = 10.0, 5.0, 1e-6
    below, above = (sgd_share(center + sign * step, center, period) for sign in (-1, 1))
    assert (0.5 - below) / step == pytest.approx(1 / period, rel=1e-5)
    assert (above - 0.5) / step == pytest.approx(1 / period, rel=1e-5)
    assert sgd_share(12.5 - step, center, period) == pytest.approx(1.0, abs=1e-6)
    assert transition_end_epochs(center, period) == 12.5


@given(st.floats(0, 100), st.floats(0, 10), st.floats(0, 90), st.floats(0.01, 50))
def test_share_never_falls_and_stays_in_bounds(start: float, more: float, center: float, period: float) -> None:
    first, second = sgd_share(start, center, period), sgd_share(start + more, center, period)
    assert 0.0 <= first <= second <= 1.0


@pytest.mark.parametrize("on_device", [False, True], ids=["floats", "tensors"])
def test_equals_the_float64_loop(problem: RandomProblem, on_device: bool) -> None:
    params = problem.params()
    optimizer = hybrid(params)
    if on_device:
        hold_on_device(optimizer)
    problem.run(optimizer, params)

    def one(index: int, reference: Any, grad: Any, now: Any) -> None:
        reference.hybrid(grad, now, rms_lr=0.003, beta=0.99, eps=1e-8)

    assert problem.distance(params, DECAYS, one) < 1e-6


@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "heavy_ball"])
@pytest.mark.parametrize("off", ["rms_lr", "share", "share_as_tensor"])
def test_without_its_adaptive_part_it_is_torchs_sgd_to_the_bit(
    problem: RandomProblem, off: str, nesterov: bool
) -> None:
    ours, theirs = problem.params(), problem.params()
    from_the_start = {"transition_center_epochs": 0.0, "transition_period_epochs": 1e-9}
    optimizer = hybrid(ours, nesterov=nesterov, **({"rms_lr": 0.0} if off == "rms_lr" else from_the_start))
    if off == "share_as_tensor":
        for group in optimizer.param_groups:
            group["sgd_share"] = torch.tensor(1.0)
    problem.run(optimizer, ours)
    problem.run(torch_sgd(theirs, DECAYS, nesterov=nesterov), theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_first_adaptive_step_is_bias_corrected() -> None:
    param = nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = hybrid([param] + [nn.Parameter(torch.zeros(1)) for _ in range(6)], lr=0.5, momentum=0.0)
    for group in optimizer.param_groups:
        group["sgd_share"] = 0.0
    param.grad = torch.tensor([0.5, -40.0])
    optimizer.step()
    # All of the update is the adaptive part's: rms_lr times the gradient's sign.
    assert torch.allclose(param.detach(), torch.tensor([3.0 - 0.003, -2.0 + 0.003]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("on_device", [False, True], ids=["floats", "tensors"])
def test_a_learning_rate_of_zero_changes_nothing_and_leaves_no_nan(on_device: bool) -> None:
    problem = RandomProblem()
    params = problem.params()
    optimizer = hybrid(params)
    if on_device:
        hold_on_device(optimizer)
    problem.moving[0].lr = 0.0
    problem.run(optimizer, params, range(1))
    assert all(torch.equal(param, start) for param, start in zip(params, problem.start, strict=True))
    problem.run(optimizer, params, range(1, 3))
    assert all(torch.isfinite(param).all() for param in params)


def test_after_the_transition_the_average_rests() -> None:
    problem = RandomProblem()
    params = problem.params()
    optimizer = hybrid(params)
    first_pure = next(step for step, now in enumerate(problem.moving) if now.share == 1.0)
    problem.run(optimizer, params, range(first_pure))
    before = optimizer.state[params[0]]["square_average"].clone()
    problem.run(optimizer, params, range(first_pure, first_pure + 3))
    assert torch.equal(optimizer.state[params[0]]["square_average"], before)
