"""Orthogonalised updates of matrices, SGD's of the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fasttrain.optimizer.build import hold_on_device
from fasttrain.optimizer.muon_sgd import MuonSGD, orthogonalise
from fasttrain.optimizer.newton_schulz import newton_schulz
from tests.optimizer.random_problem import RandomProblem, torch_sgd

DECAYS = [0.05] * 4 + [0.01] * 2 + [0.0] * 2


def muon(params: list[nn.Parameter], **changes: Any) -> MuonSGD:
    groups = [
        {"params": params[:4], "weight_decay": 0.05, "matrix": True},
        {"params": params[4:6], "weight_decay": 0.01, "matrix": False},
        {"params": params[6:], "weight_decay": 0.0, "matrix": False},
    ]
    return MuonSGD(groups, **({"lr": 0.1, "newton_schulz_dtype": "fp32"} | changes))


@pytest.mark.parametrize("on_device", [False, True], ids=["floats", "tensors"])
@pytest.mark.parametrize("steps", [3, 5])
def test_equals_the_float64_loop(problem: RandomProblem, on_device: bool, steps: int) -> None:
    params = problem.params()
    optimizer = muon(params, newton_schulz_steps=steps)
    if on_device:
        hold_on_device(optimizer)
    problem.run(optimizer, params)

    def one(index: int, reference: Any, grad: Any, now: Any) -> None:
        if index < 4:
            reference.muon(grad, now, steps=steps)
        else:
            reference.sgd(grad, now)

    assert problem.distance(params, DECAYS, one) < 1e-6


def test_parameters_that_are_no_matrices_get_torchs_sgd_to_the_bit(problem: RandomProblem) -> None:
    ours, theirs = problem.params(), problem.params()
    problem.run(muon(ours), ours)
    problem.run(torch_sgd(theirs, DECAYS), theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours[4:], theirs[4:], strict=True))


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (20, 20)], ids=["wide", "tall", "square"])
def test_newton_schulz_keeps_singular_vectors_and_evens_out_the_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    result = newton_schulz(matrices, steps=5, dtype=torch.float64)
    for matrix, after in zip(matrices, result, strict=True):
        u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
        core = u.T @ after @ vh.T
        assert torch.allclose(core, torch.diag(core.diagonal()), atol=1e-10)
        assert core.diagonal().max() < 1.25
        assert core.diagonal().median() > 0.65


def test_a_batch_equals_its_members_one_by_one() -> None:
    torch.manual_seed(2)
    tensors = [torch.randn(8, 4, 3, 3), torch.randn(6, 10), torch.randn(8, 4, 3, 3), torch.randn(8, 36)]
    together = orthogonalise(tensors, steps=3, dtype=torch.float32)
    for tensor, result in zip(tensors, together, strict=True):
        (alone,) = orthogonalise([tensor], steps=3, dtype=torch.float32)
        assert result.shape == tensor.shape
        assert torch.allclose(result, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (64, 4, 3, 3), (8, 4, 1, 1), (64, 4, 1, 1)])
def test_memory_layout_changes_nothing_and_is_kept(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    tensor = torch.randn(shape)
    last = tensor.to(memory_format=torch.channels_last)
    (plain,) = orthogonalise([tensor], steps=3, dtype=torch.float32)
    (result,) = orthogonalise([last], steps=3, dtype=torch.float32)
    assert torch.allclose(plain, result, rtol=1e-4, atol=1e-6)
    assert result.stride() == last.stride()
    assert plain.stride() == tensor.stride()


def test_scale_of_tall_matrices() -> None:
    torch.manual_seed(4)
    square_root_of_four = orthogonalise([torch.randn(40, 10)], steps=5, dtype=torch.float32)[0]
    # Ten singular values of about 1, times sqrt(40 / 10).
    assert float(square_root_of_four.norm()) == pytest.approx(2 * 10**0.5, rel=0.15)


def test_a_zero_gradient_stays_zero() -> None:
    (result,) = orthogonalise([torch.zeros(4, 3, 3, 3)], steps=3, dtype=torch.bfloat16)
    assert not result.any()
    assert result.dtype == torch.float32


def test_bf16_products_stay_close() -> None:
    torch.manual_seed(5)
    tensor = torch.randn(16, 8, 3, 3)
    (exact,) = orthogonalise([tensor], steps=3, dtype=torch.float32)
    (rough,) = orthogonalise([tensor], steps=3, dtype=torch.bfloat16)
    difference = float((exact - rough).norm() / exact.norm())
    assert 0 < difference < 0.02
