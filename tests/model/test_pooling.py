"""Max-pooling's kernels against PyTorch's; on a GPU, or in Triton's interpreter (``test_kernels_interpreted.py``)."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton")

from fasttrain.model.norm_relu_pool import BatchNormReluPool

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

# Even and odd sides, a side of one pixel, more channels than a program's, a number that is no power of two.
SHAPES = [(2, 8, 8, 12), (1, 3, 7, 9), (2, 16, 1, 5), (1, 72, 4, 4), (1, 64, 6, 38)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def images(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, *, levels: int = 5) -> Tensor:
    """Values of a few levels, so that windows have ties."""
    values = torch.randint(-levels, levels, shape, generator=torch.Generator().manual_seed(1))
    return values.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)


def reference(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's pooling, and each winner's number in its window."""
    pooled, flat = F.max_pool2d(tensor, 3, 2, 1, return_indices=True)
    row, column = flat // tensor.shape[3], flat % tensor.shape[3]
    i = torch.arange(pooled.shape[2], device=DEVICE)[:, None]
    j = torch.arange(pooled.shape[3], device=DEVICE)
    return pooled, (row - (2 * i - 1)) * 3 + column - (2 * j - 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_winners_and_gradients_are_pytorchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ours, theirs = (images(shape, dtype).requires_grad_() for _ in range(2))
    pooled, winners = torch.ops.fasttrain.max_pool(ours)
    expected, numbers = reference(theirs)
    assert torch.equal(pooled, expected)
    assert torch.equal(winners.long(), numbers)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    # Small whole numbers: sums of four are exact in any order and type.
    grad = torch.randint_like(pooled, -8, 8)
    pooled.backward(grad)
    expected.backward(grad)
    assert ours.grad is not None
    assert torch.equal(ours.grad, theirs.grad)


def test_nan_and_infinities_pool_as_in_pytorch() -> None:
    tensor = images((2, 8, 6, 8))
    tensor[0, :, 1, 2] = tensor[0, ::2, 2, 3] = float("nan")
    tensor[1, :4] = float("-inf")
    tensor[1, 4:, 3, 3] = float("inf")
    pooled, winners = torch.ops.fasttrain.max_pool(tensor)
    expected, numbers = reference(tensor.contiguous())
    assert torch.equal(pooled.isnan(), expected.isnan())
    assert torch.equal(pooled.nan_to_num(), expected.nan_to_num())
    assert torch.equal(winners.long(), numbers)


def test_images_in_another_memory_format_are_taken_too() -> None:
    tensor = images((2, 8, 8, 12)).contiguous()
    assert torch.equal(torch.ops.fasttrain.max_pool(tensor)[0], F.max_pool2d(tensor, 3, 2, 1))


@pytest.mark.parametrize("op", ["max_pool", "norm_relu_pool"])
def test_traced_shapes_and_types_are_the_real_ones(op: str) -> None:
    tensor, channel = images((2, 8, 7, 10), torch.bfloat16), torch.ones(8, device=DEVICE)
    arguments = (tensor,) if op == "max_pool" else (tensor, channel, channel, channel)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.fasttrain, op).default, arguments, test_utils=checks)


def plain(tensor: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    return F.max_pool2d(F.relu(norm(tensor)), 3, 2, 1)


def batchnorm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).to(DEVICE)
    with torch.no_grad():
        # Scales of both signs and zero: with a negative one the largest value is the smallest pixel's.
        norm.weight.copy_(torch.linspace(-1, 1.5, channels).round(decimals=1))
        norm.bias.copy_(torch.linspace(0.5, -0.5, channels))
    return norm


@pytest.mark.parametrize("shape", [(3, 8, 8, 12), (2, 6, 7, 9), (2, 64, 4, 36)], ids=str)
def test_batchnorm_relu_and_pool_are_those_of_pytorch_in_fp32(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    values = (torch.randn(shape, generator=generator) * 3 + 20).to(DEVICE)
    ours, theirs = (values.contiguous(memory_format=torch.channels_last).requires_grad_() for _ in range(2))
    norm, wanted = batchnorm(shape[1]), batchnorm(shape[1])
    pooled, mean, var = BatchNormReluPool.apply(ours, norm.weight, norm.bias, norm.eps)
    expected = plain(theirs, wanted)
    torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mean, values.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(var, values.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-5)
    grad = torch.randn(pooled.shape, generator=generator).to(DEVICE)
    pooled.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.weight.grad, wanted.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.bias.grad, wanted.bias.grad, rtol=1e-4, atol=1e-4)


def test_batchnorm_relu_and_pool_in_bf16_stay_within_its_roundings() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(4, 16, 12, 16, generator=generator).to(DEVICE, torch.bfloat16)
    ours = values.contiguous(memory_format=torch.channels_last).requires_grad_()
    exact = values.double().requires_grad_()
    norm, wanted = batchnorm(16), batchnorm(16).double()
    pooled, _, _ = BatchNormReluPool.apply(ours, norm.weight, norm.bias, norm.eps)
    expected = plain(exact, wanted)
    assert pooled.dtype == torch.bfloat16
    # A unit in the last of 8 bits: Triton's interpreter cuts off what a GPU rounds.
    torch.testing.assert_close(pooled.double(), expected, rtol=2**-7, atol=1e-6)
    grad = torch.randn(pooled.shape, generator=generator).to(DEVICE, torch.bfloat16)
    pooled.backward(grad)
    expected.backward(grad.double())
    # Values that round to the same are a tie, which the first one wins: few pixels, but not none.
    assert ours.grad is not None
    assert exact.grad is not None
    close = torch.isclose(ours.grad.double(), exact.grad, rtol=2**-7, atol=2**-7)
    assert close.double().mean() > 0.98
    torch.testing.assert_close(norm.bias.grad.double(), wanted.bias.grad, rtol=0.02, atol=0.3)
