"""BatchNorm, ReLU and max-pooling 3x3, stride 2, padding 1, at once: what lies between them is never stored.

Equal to the three layers within the roundings of the images' type.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from fasttrain.model.moments import ALL_BUT_CHANNELS, PER_CHANNEL, moments, move_running_statistics
from fasttrain.model.pooling import empty_channels_last, launch, pooled_like


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
    pooled, winners = pooled_like(images, images.dtype), pooled_like(images, torch.uint8)
    picked = torch.empty_like(pooled)
    launch("pool", images.shape, (images, mean, scale, bias, pooled, winners, picked), norm=True)
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
    launch("pool_backward", images.shape, tensors, norm=True)
    return grad_images


@norm_relu_pool.register_fake
def _(images: Tensor, mean: Tensor, scale: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(pooled_like(images, dtype) for dtype in (images.dtype, torch.uint8, images.dtype))  # type: ignore[return-value]


@norm_pool_backward.register_fake
def _(
    grad_pooled: Tensor, winners: Tensor, images: Tensor, mean: Tensor, scale: Tensor, slope: Tensor, shift: Tensor
) -> Tensor:
    return empty_channels_last(images, tuple(images.shape), images.dtype)


class BatchNormReluPool(torch.autograd.Function):
    """BatchNorm by the batch's own statistics, ReLU, and the pooling.

    Both sums of BatchNorm's gradient are over pooled values only, as no other pixel has a gradient; then one pass
    writes the gradient of the images.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Pooled values of the images' type, and mean and (biased) variance of each channel, fp32 [c]."""
        mean, var = moments(images)
        inverse_std = torch.rsqrt(var + eps)
        pooled, winners, picked = torch.ops.fasttrain.norm_relu_pool(images, mean, weight * inverse_std, bias)
        ctx.save_for_backward(images, weight, mean, inverse_std, pooled, winners, picked)
        ctx.mark_non_differentiable(mean, var)
        return pooled, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of images, weight and bias."""
        images, weight, mean, inverse_std, pooled, winners, picked = ctx.saved_tensors
        grad = torch.where(pooled <= 0, 0, grads[0]).float()
        normal = (picked.float() - mean.view(PER_CHANNEL)) * inverse_std.view(PER_CHANNEL)
        grad_bias = grad.sum(ALL_BUT_CHANNELS)
        grad_weight = (grad * normal).sum(ALL_BUT_CHANNELS)
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


def batchnorm_relu_pool(norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
    """``BatchNormReluPool`` with a layer's parameters; moves its running statistics as the layer does."""
    pooled, mean, var = cast(
        tuple[Tensor, Tensor, Tensor],
        BatchNormReluPool.apply(images, norm.weight, norm.bias, norm.eps),
    )
    move_running_statistics(norm, mean, var, images.numel() // images.shape[1])
    return pooled
