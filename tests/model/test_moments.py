"""BatchNorm from two sums against PyTorch's, in torch's operations."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import Tensor, nn

from fasttrain.model import moments
from fasttrain.model.moments import FastBatchNorm2d

# Means far from zero, a constant channel, one with a tiny spread.
MEANS, STDS = torch.tensor([0.0, 5.0, -300.0, 40.0, 1.0]), torch.tensor([1.0, 0.1, 20.0, 0.0, 1e-3])


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    normal = torch.randn(6, 7, 9, 5, generator=torch.Generator().manual_seed(1))
    return (normal * STDS + MEANS).permute(0, 3, 1, 2).to(dtype)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics by sums on a CPU and uncompiled too."""
    monkeypatch.setattr(moments, "sums_pay", lambda images: torch.is_grad_enabled())


def layers() -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    """PyTorch's layer and ours, with the same values."""
    plain = nn.BatchNorm2d(5, eps=1e-4, momentum=0.3)
    with torch.no_grad():
        plain.weight.copy_(torch.linspace(-1, 2, 5))
        plain.bias.copy_(torch.linspace(0.5, -0.5, 5))
    ours = copy.deepcopy(plain)
    ours.__class__ = FastBatchNorm2d
    return plain, ours


def test_moments_are_those_of_float64() -> None:
    exact = images().double()
    mean, var = moments.moments(images())
    torch.testing.assert_close(mean.double(), exact.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    expected = exact.var((0, 2, 3), correction=0)
    # The first value is d standard deviations away from the mean: d^2 + 1 roundings.
    roundings = (exact[0, :, 0, 0] - exact.mean((0, 2, 3))).square() + expected
    assert ((var.double() - expected).abs() <= 1e-6 * roundings).all()
    assert float(var[3]) == 0


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_gradients_and_running_statistics_are_pytorchs(dtype: torch.dtype) -> None:
    plain, ours = layers()
    theirs, given = (images(dtype).requires_grad_() for _ in range(2))
    expected, found = plain(theirs), ours(given)
    assert found.dtype == expected.dtype == dtype
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-6}
    torch.testing.assert_close(found, expected, **close)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    expected.backward(grad)
    found.backward(grad)
    for got, wanted in ((given, theirs), (ours.weight, plain.weight), (ours.bias, plain.bias)):
        assert got.grad is not None
        assert wanted.grad is not None
        scale = wanted.grad.float().abs().max()
        assert ((got.grad - wanted.grad).float().abs() <= close["rtol"] * 2 * scale).all()
    assert list(ours.state_dict()) == list(plain.state_dict())
    for got, wanted in zip(ours.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert int(ours.num_batches_tracked) == 1


@pytest.mark.usefixtures("everywhere")
def test_the_gradient_is_that_of_finite_differences() -> None:
    # In fp32 with large steps: BatchNorm of a few values bends little over them.
    _, ours = layers()
    given = torch.randn(2, 5, 3, 3, generator=torch.Generator().manual_seed(3)).requires_grad_()
    weights = torch.randn(2, 5, 3, 3, generator=torch.Generator().manual_seed(4))
    (ours(given) * weights).sum().backward()
    plain = copy.deepcopy(layers()[0]).double()
    step = 1e-6
    direction = torch.randn(given.shape, generator=torch.Generator().manual_seed(5)).double()
    with torch.no_grad():
        ends = [(plain(given.double() + sign * step * direction) * weights).sum() for sign in (1, -1)]
    assert given.grad is not None
    slope = float((ends[0] - ends[1]) / (2 * step))
    assert float((given.grad.double() * direction).sum()) == pytest.approx(slope, rel=1e-4)


def test_on_a_cpu_in_validation_and_without_gradients_the_plain_layer_runs() -> None:
    plain, ours = layers()
    assert torch.equal(ours(images()), plain(images()))
    assert torch.equal(ours.running_var, plain.running_var)
    assert torch.equal(ours.eval()(images()), plain.eval()(images()))


@pytest.mark.usefixtures("everywhere")
def test_without_gradients_the_plain_layer_runs() -> None:
    plain, ours = layers()
    with torch.no_grad():
        assert torch.equal(ours(images()), plain(images()))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU")
def test_a_compiled_training_step_is_the_uncompiled_one() -> None:
    # Inductor's backward computes some of the forward anew: nothing of that may depend on what a step moves.
    layer, compiled = layers()[1], layers()[1]
    first, second = (images().requires_grad_() for _ in range(2))
    run = torch.compile(compiled, backend="inductor", fullgraph=True)
    grad = torch.randn(first.shape, generator=torch.Generator().manual_seed(6))
    layer(first).backward(grad)
    run(second).backward(grad)
    pairs = [(second, first), (compiled.weight, layer.weight), (compiled.bias, layer.bias)]
    for got, wanted in pairs:
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-4)
    for got, wanted in zip(compiled.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


def test_layers_that_are_not_plain_are_told_apart() -> None:
    others = [
        nn.BatchNorm2d(5, affine=False),
        nn.BatchNorm2d(5, track_running_stats=False),
        nn.BatchNorm2d(5, momentum=None),
        nn.BatchNorm1d(5),
        nn.SyncBatchNorm(5),
    ]
    assert [moments.has_plain_options(layer) for layer in others] == [False] * 5
    assert moments.has_plain_options(nn.BatchNorm2d(5))
