"""BatchNorm whose mean and variance come from two sums.

Compilers follow mean and variance through each value in turn (Welford), with a division for each, and so read the
activations at half of the memory's speed. Two sums cost nothing beside the reading. They are taken of the values less
the first one, which is as near the mean as any, so that the difference of squares loses next to nothing: equal to
PyTorch's within roundings of fp32.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from fasttrain.model.pooling import DTYPES, HAS_TRITON

PER_CHANNEL = (1, -1, 1, 1)
ALL_BUT_CHANNELS = (0, 2, 3)

# Programs of a launch: 8 for each of an H100's or H200's 132 multiprocessors; values that one takes at once: four
# accesses of 16 bytes of bf16 for each of 256 threads.
NUM_PROGRAMS = 132 * 8
BLOCK_VALUES = 8192
MAX_BLOCK_CHANNELS = 256
NUM_WARPS = 8


class FastBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that takes its statistics by ``moments`` in compiled training on a GPU."""

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to the same, of the same type."""
        if not (self.training and has_plain_options(self) and sums_pay(input)):
            return super().forward(input)
        return batchnorm_by_sums(self, input)


class BatchNormBySums(torch.autograd.Function):
    """BatchNorm by the batch's own statistics."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """The normalised images in their type, and mean and (biased) variance of each channel, fp32 [c]."""
        mean, var = moments(images)
        inverse_std = torch.rsqrt(var + eps)
        centred = images.float() - mean.view(PER_CHANNEL)
        normal = centred * (weight * inverse_std).view(PER_CHANNEL) + bias.view(PER_CHANNEL)
        ctx.save_for_backward(images, weight, mean, inverse_std)
        ctx.mark_non_differentiable(mean, var)
        return normal.to(images.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of images, weight and bias: arXiv:1502.03167, section 3."""
        images, weight, mean, inverse_std = ctx.saved_tensors
        grad, centred = grads[0].float(), images.float() - mean.view(PER_CHANNEL)
        grad_bias, along = grad.sum(ALL_BUT_CHANNELS), (grad * centred).sum(ALL_BUT_CHANNELS)
        num_pixels = images.numel() // images.shape[1]
        slope = inverse_std.square() * along / num_pixels
        projected = grad - (grad_bias / num_pixels).view(PER_CHANNEL) - centred * slope.view(PER_CHANNEL)
        grad_images = projected * (weight * inverse_std).view(PER_CHANNEL)
        return grad_images.to(images.dtype), along * inverse_std, grad_bias, None


def batchnorm_by_sums(norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
    """``BatchNormBySums`` with a layer's parameters; moves its running statistics as the layer does."""
    normal, mean, var = cast(
        tuple[Tensor, Tensor, Tensor],
        BatchNormBySums.apply(images, norm.weight, norm.bias, norm.eps),
    )
    move_running_statistics(norm, mean, var, images.numel() // images.shape[1])
    return normal


def has_plain_options(norm: nn.Module) -> bool:
    """Whether a layer is a BatchNorm with scale, bias and running statistics of fixed momentum."""
    return (
        isinstance(norm, nn.BatchNorm2d)
        and type(norm) in (nn.BatchNorm2d, FastBatchNorm2d)
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
    )


def move_running_statistics(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor, num_pixels: int) -> None:
    """One step of the running mean and (unbiased) variance, and of the counter."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(var * (num_pixels / (num_pixels - 1)), norm.momentum)


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of [n, c, h, w], fp32 [c].

    A first value d standard deviations away from the mean costs the variance d^2 roundings.
    """
    # Not the running mean: a step moves it, and what the backward computes anew would follow.
    shift = images[0, :, 0, 0].float()
    num_pixels = images.numel() // images.shape[1]
    if can_sum(images):
        total, squares = torch.ops.fasttrain.channel_sums(images).sum(0)
    else:
        distance = images.float() - shift.view(PER_CHANNEL)
        total, squares = distance.sum(ALL_BUT_CHANNELS), distance.square().sum(ALL_BUT_CHANNELS)
    distance = total / num_pixels
    # Rounding may leave a channel of equal values a hair below zero.
    return shift + distance, (squares / num_pixels - distance.square()).clamp_min(0)


def sums_pay(images: Tensor) -> bool:
    """Whether the sums are worth it: compiled, on a GPU, of a type whose sums fp32 holds, with gradients to come."""
    return images.is_cuda and images.dtype in DTYPES and torch.is_grad_enabled() and torch.compiler.is_compiling()


def can_sum(images: Tensor) -> bool:
    """Whether the kernel takes these images: on a GPU, channels_last."""
    return HAS_TRITON and images.is_cuda and images.is_contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("fasttrain::channel_sums", mutates_args=(), schema="(Tensor images) -> Tensor")
def channel_sums(images: Tensor) -> Tensor:
    """Sums of each pixel less the first, and of the square, over parts of the pixels: fp32 [parts, 2, c]."""
    from fasttrain.model import moments_kernels

    images = images.contiguous(memory_format=torch.channels_last)
    channels = images.shape[1]
    num_pixels = images.numel() // channels
    num_chunks, chunk_pixels, block_pixels, block_channels = _chunks(num_pixels, channels)
    sums = torch.empty(num_chunks, 2, channels, dtype=torch.float32, device=images.device)
    moments_kernels.channel_sums[(num_chunks, -(-channels // block_channels))](
        images,
        sums,
        num_pixels,
        CHANNELS=channels,
        CHUNK_PIXELS=chunk_pixels,
        BLOCK_PIXELS=block_pixels,
        BLOCK_CHANNELS=block_channels,
        num_warps=NUM_WARPS,
    )
    return sums


@channel_sums.register_fake
def _(images: Tensor) -> Tensor:
    num_chunks = _chunks(images.numel() // images.shape[1], images.shape[1])[0]
    return images.new_empty((num_chunks, 2, images.shape[1]), dtype=torch.float32)


def _chunks(num_pixels: int, channels: int) -> tuple[int, int, int, int]:
    """Parts of the pixels, pixels of a part, and pixels and channels that a program takes at once."""
    block_channels = min(MAX_BLOCK_CHANNELS, 1 << (channels - 1).bit_length())
    block_pixels = BLOCK_VALUES // block_channels
    wanted = max(1, NUM_PROGRAMS * block_channels // channels)
    blocks = -(-num_pixels // (wanted * block_pixels))
    chunk_pixels = blocks * block_pixels
    return -(-num_pixels // chunk_pixels), chunk_pixels, block_pixels, block_channels
