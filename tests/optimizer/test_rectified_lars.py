"""The clamped trust ratio, and what is left without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fasttrain.optimizer.build import hold_on_device
from fasttrain.optimizer.rectified_lars import RectifiedLARS, trust_ratios
from tests.optimizer.random_problem import RandomProblem, torch_sgd

DECAYS = [0.05] * 6 + [0.0] * 2


def lars(params: list[nn.Parameter], **changes: Any) -> RectifiedLARS:
    groups = [
        {"params": params[:6], "weight_decay": 0.05, "trust": True},
        {"params": params[6:], "weight_decay": 0.0, "trust": False},
    ]
    return RectifiedLARS(groups, **({"lr": 0.1} | changes))


@pytest.mark.parametrize("on_device", [False, True], ids=["floats", "tensors"])
def test_equals_the_float64_loop(problem: RandomProblem, on_device: bool) -> None:
    params = problem.params()
    # Bounds that some of the steps reach and some do not.
    settings = {"eta": 0.5, "min_trust_ratio": 0.05, "max_trust_ratio": 0.4}
    optimizer = lars(params, **settings)
    if on_device:
        hold_on_device(optimizer)
    problem.run(optimizer, params)

    def one(index: int, reference: Any, grad: Any, now: Any) -> None:
        if index < 6:
            reference.lars(grad, now, eta=0.5, low=0.05, high=0.4)
        else:
            reference.sgd(grad, now)

    assert problem.distance(params, DECAYS, one) < 1e-6


@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "heavy_ball"])
def test_with_both_bounds_one_it_is_torchs_sgd_to_the_bit(problem: RandomProblem, nesterov: bool) -> None:
    ours, theirs = problem.params(), problem.params()
    problem.run(lars(ours, min_trust_ratio=1.0, max_trust_ratio=1.0, nesterov=nesterov), ours)
    problem.run(torch_sgd(theirs, DECAYS, nesterov=nesterov), theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# eta 1e-3, decay 0.1, bounds 1e-5 and 1. |w| = 5: |g| = 2 gives 5e-3 / 2.5 = 2e-3; |g| = 0 gives 1e-2.
# |w| = 0 gives the lower bound; a vanishing |g| without decay the upper.
@pytest.mark.parametrize(
    ("weight", "grad", "weight_decay", "ratio"),
    [
        ([3.0, 4.0], [2.0, 0.0], 0.1, 2e-3),
        ([3.0, 4.0], [0.0, 0.0], 0.1, 1e-2),
        ([3.0, 4.0], [1e4, 0.0], 0.1, 1e-5),
        ([3.0, 4.0], [1e-4, 0.0], 0.0, 1.0),
        ([3.0, 4.0], [0.0, 0.0], 0.0, 1.0),
        ([0.0, 0.0], [2.0, 0.0], 0.1, 1e-5),
        ([0.0, 0.0], [0.0, 0.0], 0.1, 1e-5),
    ],
)
def test_trust_ratio_by_hand(weight: list[float], grad: list[float], weight_decay: float, ratio: float) -> None:
    found = trust_ratios(
        [torch.tensor(weight)],
        [torch.tensor(grad)],
        weight_decay=weight_decay,
        eta=1e-3,
        bounds=(1e-5, 1.0),
    )
    assert found.tolist() == pytest.approx([ratio], rel=1e-6)
