"""Max-pooling 3x3, stride 2, padding 1, whose backward reads and writes each value once.

Values equal PyTorch's to the bit, ties and NaN included, and gradients but for the order of four summands.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

HAS_TRITON = importlib.util.find_spec("triton") is not None

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# Values of one program: 8 for each of 128 threads, 16 bytes of bf16.
BLOCK_VALUES = 1024
MAX_BLOCK_CHANNELS = 64


class FastMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d(3, 2, 1)`` that pools by ``max_pool`` in training on a GPU, and as ever elsewhere."""

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c, ceil(h / 2), ceil(w / 2)]."""
        if self.training and can_pool(input):
            pooled: Tensor = torch.ops.fasttrain.max_pool(input)[0]
            return pooled
        return super().forward(input)


def is_pool(module: nn.Module) -> bool:
    """Whether a module is the pooling that ``max_pool`` computes."""
    return (
        type(module) in (nn.MaxPool2d, FastMaxPool2d)
        and _pair(module.kernel_size) == (3, 3)
        and _pair(module.stride) == (2, 2)
        and _pair(module.padding) == (1, 1)
        and _pair(module.dilation) == (1, 1)
        and not module.ceil_mode
        and not module.return_indices
    )


def can_pool(images: Tensor) -> bool:
    """Whether the kernels take these images: on a GPU, channels_last, with gradients to come."""
    channels_last = images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last)
    return HAS_TRITON and images.is_cuda and channels_last and images.dtype in DTYPES and torch.is_grad_enabled()


@torch.library.custom_op("fasttrain::max_pool", mutates_args=(), schema="(Tensor images) -> (Tensor, Tensor)")
def max_pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value of each window and, for the backward, the number of its pixel, uint8 in 0..8.

    Args:
        images: bf16, fp16 or fp32 [n, c, h, w].

    Returns:
        Both [n, c, ceil(h / 2), ceil(w / 2)] in channels_last memory.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    pooled, winners = pooled_like(images, images.dtype), pooled_like(images, torch.uint8)
    launch("pool", images.shape, (images, None, None, None, pooled, winners, None), norm=False)
    return pooled, winners


@torch.library.custom_op(
    "fasttrain::max_pool_backward",
    mutates_args=(),
    schema="(Tensor grad_pooled, Tensor winners, int height, int width) -> Tensor",
)
def max_pool_backward(grad_pooled: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
    """Gradient of ``max_pool``'s images of this height and width."""
    grad_pooled = grad_pooled.contiguous(memory_format=torch.channels_last)
    winners = winners.contiguous(memory_format=torch.channels_last)
    shape = (*grad_pooled.shape[:2], height, width)
    grad_images = empty_channels_last(grad_pooled, shape, grad_pooled.dtype)
    launch("pool_backward", shape, (grad_pooled, winners, None, None, None, None, None, grad_images), norm=False)
    return grad_images


@max_pool.register_fake
def _(images: Tensor) -> tuple[Tensor, Tensor]:
    return pooled_like(images, images.dtype), pooled_like(images, torch.uint8)


@max_pool_backward.register_fake
def _(grad_pooled: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
    return empty_channels_last(grad_pooled, (*grad_pooled.shape[:2], height, width), grad_pooled.dtype)


def _keep_winners(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.height, ctx.width = inputs[0].shape[-2:]


def _backward(ctx: Any, grad_pooled: Tensor, _: Tensor | None) -> Tensor:
    grad_images: Tensor = torch.ops.fasttrain.max_pool_backward(grad_pooled, *ctx.saved_tensors, ctx.height, ctx.width)
    return grad_images


max_pool.register_autograd(_backward, setup_context=_keep_winners)


def launch(kernel: str, shape: Any, tensors: tuple[Tensor | None, ...], *, norm: bool) -> None:
    """Run a kernel over the windows of images of ``shape`` [n, c, h, w]."""
    from fasttrain.model import pooling_kernels

    num_images, channels, height, width = shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    block_channels = min(MAX_BLOCK_CHANNELS, 1 << (channels - 1).bit_length())
    block_columns = BLOCK_VALUES // block_channels
    grid = (num_images * rows, -(-columns // block_columns), -(-channels // block_channels))
    getattr(pooling_kernels, kernel)[grid](
        *tensors,
        HEIGHT=height,
        WIDTH=width,
        CHANNELS=channels,
        NORM=norm,
        BLOCK_COLUMNS=block_columns,
        BLOCK_CHANNELS=block_channels,
    )


def pooled_like(images: Tensor, dtype: torch.dtype) -> Tensor:
    """An empty tensor for one value a window."""
    n, c, h, w = images.shape
    return empty_channels_last(images, (n, c, (h + 1) // 2, (w + 1) // 2), dtype)


def empty_channels_last(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor in channels_last memory on the device of another."""
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
