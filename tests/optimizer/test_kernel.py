"""The kernels against the lists' arithmetic, torch's SGD and the float64 loop.

On a GPU as they are; elsewhere in Triton's interpreter, which ``test_kernel_interpreted.py`` starts.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from fasttrain.optimizer.build import hold_on_device, set_hyperparameters
from fasttrain.optimizer.hybrid import HybridSGD
from fasttrain.optimizer.momentum_sgd import MomentumSGD
from fasttrain.optimizer.multi_tensor import MultiTensorOptimizer
from fasttrain.optimizer.muon_sgd import MuonSGD
from fasttrain.optimizer.rectified_lars import RectifiedLARS
from tests.optimizer.random_problem import SHAPES, RandomProblem, epochs_of_share

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

STEPS = range(4)
DECAYS = [0.05] * 4 + [0.01] * 2 + [0.0] * 2
Params = list[nn.Parameter]


def groups_of(params: Params, **matrices: Any) -> list[dict[str, Any]]:
    return [
        {"params": params[:4], "weight_decay": 0.05, **matrices},
        {"params": params[4:6], "weight_decay": 0.01, **dict.fromkeys(matrices, False)},
        {"params": params[6:], "weight_decay": 0.0, **dict.fromkeys(matrices, False)},
    ]


def sgd(params: Params, **changes: Any) -> MultiTensorOptimizer:
    return MomentumSGD(groups_of(params), lr=0.1, **changes)


def hybrid(params: Params, **changes: Any) -> MultiTensorOptimizer:
    transition = {"transition_center_epochs": 2.0, "transition_period_epochs": 1.0, "rms_lr": 0.003}
    return HybridSGD(groups_of(params), lr=0.1, **(transition | changes))


def lars(params: Params, **changes: Any) -> MultiTensorOptimizer:
    bounds = {"eta": 0.5, "min_trust_ratio": 0.05, "max_trust_ratio": 0.4}
    return RectifiedLARS(groups_of(params, trust=True), lr=0.1, **(bounds | changes))


def muon(params: Params, **changes: Any) -> MultiTensorOptimizer:
    return MuonSGD(groups_of(params, matrix=True), lr=0.1, **({"newton_schulz_dtype": "fp32"} | changes))


OWN = [sgd, hybrid, lars, muon]
Build = Callable[..., MultiTensorOptimizer]


def params_of(problem: RandomProblem) -> Params:
    return [nn.Parameter(param.detach().to(DEVICE)) for param in problem.params()]


def run(
    problem: RandomProblem,
    optimizer: torch.optim.Optimizer,
    params: Params,
    steps: range = STEPS,
    *,
    scale: float | None = None,
    infinite: int | None = None,
) -> None:
    """Steps with the problem's moving numbers; with ``scale`` as GradScaler hands it over."""
    for step in steps:
        now = problem.moving[step]
        set_hyperparameters(optimizer, lr=now.lr, momentum=now.momentum, epochs_done=epochs_of_share(now.share))
        for param, grad in zip(params, problem.grads[step], strict=True):
            param.grad = (grad * (scale or 1.0)).to(DEVICE)
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale, device=DEVICE)  # type: ignore[attr-defined]
            optimizer.found_inf = torch.tensor(float(step == infinite), device=DEVICE)  # type: ignore[attr-defined]
            if step == infinite:
                for param in params:
                    param.grad.fill_(float("inf"))  # type: ignore[union-attr]
        optimizer.step()


def without_kernels(optimizer: MultiTensorOptimizer) -> MultiTensorOptimizer:
    optimizer.launches = lambda: None  # type: ignore[method-assign]
    return optimizer


def distance(one: Params, other: Params) -> float:
    """Norm of the difference over norm."""
    difference = sum(
        float((a.detach().double() - b.detach().double()).square().sum()) for a, b in zip(one, other, strict=True)
    )
    return (difference / sum(float(b.detach().double().square().sum()) for b in other)) ** 0.5


def snapshot(optimizer: MultiTensorOptimizer, params: Params) -> list[torch.Tensor]:
    """Weights, averages and the numbers that an update moves."""
    averages = [tensor for param in params for tensor in optimizer.state[param].values()]
    counters = [group[key] for group in optimizer.param_groups for key in optimizer.counters]
    return [tensor.detach().clone() for tensor in (*params, *averages, *counters)]


@pytest.fixture
def large() -> RandomProblem:
    """Besides the small tensors one of two blocks, the second of them not full."""
    shapes = list(SHAPES)
    try:
        SHAPES[3] = (32, 8, 3, 3)  # 2304 elements
        return RandomProblem(channels_last=True)
    finally:
        SHAPES[:] = shapes


@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "heavy_ball"])
@pytest.mark.parametrize("build", OWN)
def test_the_kernels_equal_the_lists_within_a_few_ulps(large: RandomProblem, build: Build, nesterov: bool) -> None:
    by_kernels, by_lists = params_of(large), params_of(large)
    optimizer = build(by_kernels, nesterov=nesterov)
    run(large, optimizer, by_kernels)
    run(large, without_kernels(build(by_lists, nesterov=nesterov)), by_lists)
    assert optimizer._launches is not None
    # An fp32 ulp is 1.2e-7 at most; four steps of a few roundings each.
    assert distance(by_kernels, by_lists) < 4e-7


@pytest.mark.parametrize("held", [False, True], ids=["floats", "tensors"])
@pytest.mark.parametrize("build", OWN)
def test_the_kernels_equal_the_float64_loop(problem: RandomProblem, build: Build, held: bool) -> None:
    params = params_of(problem)
    optimizer = build(params)
    if held:
        hold_on_device(optimizer)
    problem.moving, problem.grads = problem.moving[:4], problem.grads[:4]
    run(problem, optimizer, params)

    def one(index: int, reference: Any, grad: Any, now: Any) -> None:
        if build is hybrid:
            reference.hybrid(grad, now, rms_lr=0.003, beta=0.99, eps=1e-8)
        elif build is lars and index < 4:
            reference.lars(grad, now, eta=0.5, low=0.05, high=0.4)
        elif build is muon and index < 4:
            reference.muon(grad, now, steps=3)
        else:
            reference.sgd(grad, now)

    assert problem.distance([param.cpu() for param in params], DECAYS, one) < 1e-6


@pytest.mark.parametrize("build", [hybrid, lars, muon])
def test_with_its_extra_part_off_an_optimizer_is_the_sgd_kernel_to_the_bit(large: RandomProblem, build: Build) -> None:
    off: dict[Build, dict[str, float]] = {
        hybrid: {"rms_lr": 0.0},
        lars: {"min_trust_ratio": 1.0, "max_trust_ratio": 1.0},
        muon: {},
    }
    first = 4 if build is muon else 0
    ours, plain = params_of(large), params_of(large)
    run(large, build(ours, **off[build]), ours)
    run(large, sgd(plain), plain)
    assert all(torch.equal(a, b) for a, b in zip(ours[first:], plain[first:], strict=True))


@pytest.mark.skipif(INTERPRETED, reason="torch's fused SGD has other roundings on a CPU")
@pytest.mark.parametrize("held", [False, True], ids=["floats", "tensors"])
@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "heavy_ball"])
def test_the_sgd_kernel_is_torchs_fused_sgd_to_the_bit(large: RandomProblem, nesterov: bool, held: bool) -> None:
    ours, theirs = params_of(large), params_of(large)
    optimizer = sgd(ours, nesterov=nesterov)
    if held:
        hold_on_device(optimizer)
    run(large, optimizer, ours)
    run(large, torch.optim.SGD(groups_of(theirs), lr=0.1, momentum=0.9, nesterov=nesterov, fused=True), theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("build", OWN)
def test_scaled_gradients_change_nothing_and_an_infinity_leaves_the_step_out(
    large: RandomProblem, build: Build
) -> None:
    plain, scaled = params_of(large), params_of(large)
    run(large, build(plain), plain)
    optimizer = build(scaled)
    run(large, optimizer, scaled, scale=2.0**12)
    # A power of two as the scale is exact.
    assert all(torch.equal(a, b) for a, b in zip(plain, scaled, strict=True))
    before = snapshot(optimizer, scaled)
    run(large, optimizer, scaled, range(4, 5), scale=2.0**12, infinite=4)
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(optimizer, scaled), strict=True))


@pytest.mark.parametrize("build", OWN)
def test_state_goes_on_exactly(build: Build) -> None:
    problem = RandomProblem(channels_last=True)
    straight, resumed = params_of(problem), params_of(problem)
    optimizer, again = build(straight), build(resumed)
    run(problem, optimizer, straight, range(3))
    with torch.no_grad():
        for target, source in zip(resumed, straight, strict=True):
            target.copy_(source)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(problem, optimizer, straight, range(3, 5))
    run(problem, again, resumed, range(3, 5))
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("build", OWN)
def test_what_the_kernels_cannot_take_goes_by_lists(build: Build) -> None:
    ours, theirs = (params_of(RandomProblem(dtype=torch.float64)) for _ in range(2))
    problem = RandomProblem(dtype=torch.float64)
    run(problem, build(ours), ours, range(3))
    run(problem, without_kernels(build(theirs)), theirs, range(3))
    assert distance(ours, theirs) < 1e-12


def test_a_gradient_of_another_memory_order_goes_by_lists_for_that_step() -> None:
    problem = RandomProblem(channels_last=True)
    ours, theirs = params_of(problem), params_of(problem)
    one, other = sgd(ours), without_kernels(sgd(theirs))
    run(problem, one, ours, range(2))
    run(problem, other, theirs, range(2))
    problem.grads[2] = [grad.contiguous() for grad in problem.grads[2]]
    run(problem, one, ours, range(2, 4))
    run(problem, other, theirs, range(2, 4))
    assert distance(ours, theirs) < 4e-7


def test_the_tables_follow_moved_gradients_and_missing_ones() -> None:
    problem = RandomProblem()
    ours, theirs = params_of(problem), params_of(problem)
    one, other = hybrid(ours), without_kernels(hybrid(theirs))
    for step, missing in enumerate([{2, 7}, set(), {0}]):
        for optimizer, params in ((one, ours), (other, theirs)):
            now = problem.moving[step]
            set_hyperparameters(optimizer, lr=now.lr, momentum=now.momentum, epochs_done=1.9)
            for index, param in enumerate(params):
                param.grad = None if index in missing else problem.grads[step][index].clone().to(DEVICE)
            optimizer.step()
    assert distance(ours, theirs) < 4e-7


@pytest.mark.skipif(INTERPRETED, reason="a capture needs a GPU")
@pytest.mark.parametrize("fixed", [True, False], ids=["gradients_kept", "gradients_of_the_graph"])
@pytest.mark.parametrize("build", OWN)
def test_a_captured_step_follows_all_moving_numbers(large: RandomProblem, build: Build, fixed: bool) -> None:
    eager, captured = params_of(large), params_of(large)
    plain = build(eager)
    run(large, plain, eager)
    optimizer = build(captured)
    hold_on_device(optimizer)
    run(large, optimizer, captured, range(2))
    batch = [torch.zeros_like(param) for param in captured]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for param, grad in zip(captured, batch, strict=True):
            param.grad = grad if fixed else grad * 1
        optimizer.step()
    for step in range(2, 4):
        now = large.moving[step]
        set_hyperparameters(optimizer, lr=now.lr, momentum=now.momentum, epochs_done=epochs_of_share(now.share))
        for target, grad in zip(batch, large.grads[step], strict=True):
            target.copy_(grad)
        graph.replay()
    if build is muon:
        # The library of matrix products may choose others in a capture.
        assert distance(captured, eager) < 1e-6
        return
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(snapshot(plain, eager), snapshot(optimizer, captured), strict=True))
