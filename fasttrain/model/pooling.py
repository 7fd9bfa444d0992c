"""Max-pooling 3x3, stride 2, padding 1, whose backward reads and writes each value once; also with BatchNorm and ReLU.

Alone, values equal PyTorch's to the bit, ties and NaN included, and gradients but for the order of four summands. With
BatchNorm and ReLU before it they are equal within the roundings of the images' type.
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


# --- alone ---


@torch.library.custom_op("fasttrain::max_pool", mutates_args=(), schema="(Tensor images) -> (Tensor, Tensor)")
def max_pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value of each window and, for the backward, the number of its pixel, uint8 in 0..8.

    Args:
        images: bf16, fp16 or fp32 [n, c, h, w].

    Returns:
        Both [n, c, ceil(h / 2), ceil(w / 2)] in channels_last memory.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    pooled, winners = _pooled_like(images, images.dtype), _pooled_like(images, torch.uint8)
    _launch("pool", images.shape, (images, None, None, None, pooled, winners, None), norm=False)
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
    grad_images = _empty(grad_pooled, shape, grad_pooled.dtype)
    _launch("pool_backward", shape, (grad_pooled, winners, None, None, None, None, None, grad_images), norm=False)
    return grad_images


@max_pool.register_fake
def _(images: Tensor) -> tuple[Tensor, Tensor]:
    return _pooled_like(images, images.dtype), _pooled_like(images, torch.uint8)


@max_pool_backward.register_fake
def _(grad_pooled: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
    return _empty(grad_pooled, (*grad_pooled.shape[:2], height, width), grad_pooled.dtype)


def _keep_winners(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.height, ctx.width = inputs[0].shape[-2:]


def _backward(ctx: Any, grad_pooled: Tensor, _: Tensor | None) -> Tensor:
    grad_images: Tensor = torch.ops.fasttrain.max_pool_backward(grad_pooled, *ctx.saved_tensors, ctx.height, ctx.width)
    return grad_images


max_pool.register_autograd(_backward, setup_context=_keep_winners)


# --- with BatchNorm and ReLU before it ---


@torch.library.custom_op(
    "fasttrain::norm_relu_pool",
    mutates_args=(),
    schema="(Tensor images, Tensor mean, Tensor scale, Tensor bias) -> (Tensor, Tensor, Tensor)",
)
def norm_relu_pool(images: Tensor, mean: Tensor, scale: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``max_pool`` of ``relu((images - mean) * scale + bias)``, which is rounded to the images' type but not stored.

    Args:
        images: bf16, fp16 or fp32 [n, c, h, w].
        mean, scale, bias: fp32 [c].

    Returns:
        Largest values, their pixels' numbers, and these pixels of ``images``. It has no gradient of its own.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    pooled, winners = _pooled_like(images, images.dtype), _pooled_like(images, torch.uint8)
    picked = torch.empty_like(pooled)
    _launch("pool", images.shape, (images, mean, scale, bias, pooled, winners, picked), norm=True)
    return pooled, winners, picked


@torch.library.custom_op(
    "fasttrain::norm_pool_backward",
    mutates_args=(),
    schema="(Tensor grad_pooled, Tensor winners, Tensor images, Tensor mean, Tensor scale, Tensor slope, Tensor shift)"
    " -> Tensor",
)
def norm_pool_backward(
    grad_pooled: Tensor, winners: Tensor, images: Tensor, mean: Tensor, scale: Tensor, slope: Tensor, shift: Tensor
) -> Tensor:
    """``scale * g + slope * (images - mean) + shift``, g the gradient of the pooling; the rest fp32 [c]."""
    grad_pooled, winners, images = (
        tensor.contiguous(memory_format=torch.channels_last) for tensor in (grad_pooled, winners, images)
    )
    grad_images = torch.empty_like(images)
    tensors = (grad_pooled, winners, images, mean, scale, slope, shift, grad_images)
    _launch("pool_backward", images.shape, tensors, norm=True)
    return grad_images


@norm_relu_pool.register_fake
def _(images: Tensor, mean: Tensor, scale: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(_pooled_like(images, dtype) for dtype in (images.dtype, torch.uint8, images.dtype))  # type: ignore[return-value]


@norm_pool_backward.register_fake
def _(
    grad_pooled: Tensor, winners: Tensor, images: Tensor, mean: Tensor, scale: Tensor, slope: Tensor, shift: Tensor
) -> Tensor:
    return _empty(images, tuple(images.shape), images.dtype)


class BatchNormReluPool(torch.autograd.Function):
    """BatchNorm by the batch's own statistics, ReLU, and the pooling.

    Both sums of BatchNorm's gradient are over pooled values only, as no other pixel has a gradient; then one pass
    writes the gradient of the images.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Pooled values of the images' type, and mean and (biased) variance of each channel, fp32 [c]."""
        var, mean = torch.var_mean(images.float(), (0, 2, 3), correction=0)
        inverse_std = torch.rsqrt(var + eps)
        pooled, winners, picked = torch.ops.fasttrain.norm_relu_pool(images, mean, weight * inverse_std, bias)
        ctx.save_for_backward(images, weight, mean, inverse_std, pooled, winners, picked)
        ctx.mark_non_differentiable(mean, var)
        return pooled, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of images, weight and bias."""
        images, weight, mean, inverse_std, pooled, winners, picked = ctx.saved_tensors
        per_channel = (1, -1, 1, 1)
        grad = torch.where(pooled <= 0, 0, grads[0]).float()
        normal = (picked.float() - mean.view(per_channel)) * inverse_std.view(per_channel)
        grad_bias = grad.sum((0, 2, 3))
        grad_weight = (grad * normal).sum((0, 2, 3))
        # arXiv:1502.03167, section 3, with the sums over all pixels of a channel.
        scale = weight * inverse_std
        num_pixels = images.numel() // images.shape[1]
        grad_images = torch.ops.fasttrain.norm_pool_backward(
            grad.to(images.dtype),
            winners,
            images,
            mean,
            scale,
            -scale * inverse_std * grad_weight / num_pixels,
            -scale * grad_bias / num_pixels,
        )
        return grad_images, grad_weight, grad_bias, None


# --- both ---


def _launch(kernel: str, shape: Any, tensors: tuple[Tensor | None, ...], *, norm: bool) -> None:
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


def _pooled_like(images: Tensor, dtype: torch.dtype) -> Tensor:
    n, c, h, w = images.shape
    return _empty(images, (n, c, (h + 1) // 2, (w + 1) // 2), dtype)


def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
