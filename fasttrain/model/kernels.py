"""Layers of a network computed by faster means, each an option of ``conf/model``; parameters and their names stay."""

from __future__ import annotations

from typing import Any, cast

from timm.models.resnet import ResNet
from torch import Tensor, nn

from fasttrain.config.schema import KernelsConfig
from fasttrain.errors import ConfigError, Problem
from fasttrain.model.moments import FastBatchNorm2d, has_plain_options
from fasttrain.model.norm_relu_pool import batchnorm_relu_pool
from fasttrain.model.pooling import FastMaxPool2d, can_pool, is_pool
from fasttrain.model.stem import FoldedStemConv2d, is_stem


class FusedPoolResNet(ResNet):
    """A timm ResNet whose stem's BatchNorm, ReLU and max-pooling are one operation in training on a GPU."""

    def forward_features(self, x: Tensor) -> Tensor:
        """As the parent's; what the fused operation cannot do runs as ever."""
        # Asked at each call: the layers may have been exchanged, or set to another mode, since the network was built.
        if not (has_fused_pool(self) and self.training and self.bn1.training) or self.grad_checkpointing:
            return super().forward_features(x)
        x = self.conv1(x)
        if can_pool(x):
            x = batchnorm_relu_pool(cast(nn.BatchNorm2d, self.bn1), x)
        else:
            x = self.maxpool(self.act1(self.bn1(x)))
        layers: list[Any] = [self.layer1, self.layer2, self.layer3, self.layer4]
        for layer in layers:
            x = layer(x)
        return x


def has_fused_pool(model: nn.Module) -> bool:
    """Whether the network is a timm ResNet that begins with convolution, plain BatchNorm, ReLU and the max-pooling."""
    if not isinstance(model, ResNet):
        return False
    return has_plain_options(model.bn1) and type(model.act1) is nn.ReLU and is_pool(model.maxpool)


def use_kernels(model: nn.Module, options: KernelsConfig) -> None:
    """Let the layers that ``options`` names compute by the faster means, where the network has them.

    Raises:
        ConfigError: An option is ``true`` and the network has no such layer.
    """
    if problems := nothing_to_speed_up(model, options):
        raise ConfigError(problems)
    # Only how the layers compute differs: a new layer would have to copy what they hold.
    for module in list(model.modules()):
        if options.stem != "false" and is_stem(module):
            module.__class__ = FoldedStemConv2d
            cast(FoldedStemConv2d, module).everywhere = options.stem == "true"
        if options.max_pool != "false" and is_pool(module):
            module.__class__ = FastMaxPool2d
        if options.batchnorm != "false" and type(module) is nn.BatchNorm2d and has_plain_options(module):
            module.__class__ = FastBatchNorm2d
    if options.norm_relu_pool != "false" and type(model) is ResNet and has_fused_pool(model):
        model.__class__ = FusedPoolResNet


def nothing_to_speed_up(model: nn.Module, options: KernelsConfig) -> list[Problem]:
    """What to say of each option that is ``true`` while the network has no such layer."""
    asked = {
        "stem": (options.stem, "7x7 convolution of stride 2 on 3 channels", any(map(is_stem, model.modules()))),
        "batchnorm": (
            options.batchnorm,
            "plain BatchNorm (scale, bias and running statistics)",
            any(map(has_plain_options, model.modules())),
        ),
        "max_pool": (options.max_pool, "max-pooling 3x3 of stride 2", any(map(is_pool, model.modules()))),
        "norm_relu_pool": (
            options.norm_relu_pool,
            "stem of plain BatchNorm, ReLU and max-pooling 3x3 as timm's ResNets have",
            type(model) is ResNet and has_fused_pool(model),
        ),
    }
    return [
        Problem(
            f"model.kernels.{key}=true: {type(model).__name__} has no {layer}",
            f"model.kernels.{key}=auto",
        )
        for key, (value, layer, found) in asked.items()
        if value == "true" and not found
    ]
