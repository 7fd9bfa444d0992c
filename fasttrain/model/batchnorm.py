"""The changes to BatchNorm, each an option of ``conf/model``."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fasttrain.errors import ConfigError, Problem


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm of the network, timm's fused norm-and-activation layers included."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def last_batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """The last BatchNorm of each residual block, in a network whose class has no ``zero_init_last``.

    A residual block is what timm marks as one with ``has_skip`` (EfficientNet, MobileNet and their kin).
    """
    blocks = [module for module in model.modules() if getattr(module, "has_skip", False) is True]
    norms = [batchnorms(block) for block in blocks]
    return [inside[-1] for inside in norms if inside and inside[-1].affine]


def zero_init_last(model: nn.Module) -> None:
    """Start each residual block as the identity: the scale of its last BatchNorm becomes zero.

    For networks whose class does not do it itself.

    Raises:
        ConfigError: The network has no residual block with BatchNorm.

    Source: arXiv:1706.02677, section 5.1.
    """
    norms = last_batchnorms(model)
    if not norms:
        raise ConfigError(nothing_to_zero(type(model).__name__))
    for norm in norms:
        nn.init.zeros_(norm.weight)


def set_momentum_and_eps(model: nn.Module, *, momentum: float | None, eps: float | None) -> None:
    """Set both on every BatchNorm; None keeps the network's own.

    Args:
        model: The network.
        momentum: Weight of the newest batch in the running statistics (torch's convention).
        eps: Added to the variance.

    Raises:
        ConfigError: A value for a network without BatchNorm.
    """
    norms = batchnorms(model)
    for key, value in (("momentum", momentum), ("eps", eps)):
        if value is None:
            continue
        if not norms:
            raise ConfigError(nothing_to_set(type(model).__name__, key, value))
        for norm in norms:
            setattr(norm, key, value)


def nothing_to_zero(network: str) -> Problem:
    """What to say where ``zero_init_last`` finds no residual block."""
    return Problem(
        f"model.batchnorm.zero_init_last=true: {network} has no residual block that ends in BatchNorm",
        "model.batchnorm.zero_init_last=false",
    )


def nothing_to_set(network: str, key: str, value: float) -> Problem:
    """What to say where a BatchNorm option meets a network without BatchNorm."""
    return Problem(f"model.batchnorm.{key}={value:g}: {network} has no BatchNorm", f"model.batchnorm.{key}=null")
