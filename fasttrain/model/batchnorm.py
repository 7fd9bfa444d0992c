"""The changes to BatchNorm, each an option of ``conf/model``."""

from __future__ import annotations

from timm.layers import convert_sync_batchnorm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fasttrain.config.schema import BatchNormConfig
from fasttrain.errors import ConfigError, Problem
from fasttrain.model.ghost import use_groups

# The options that every network with BatchNorm can have, as they are written where they do nothing.
OFF = {
    "momentum": "null",
    "eps": "null",
    "ghost_size": "null",
    "frozen_scale": "null",
    "bias_lr_scale": "1",
    "sync": "false",
    "recalibrate_images": "0",
}


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


def apply_options(model: nn.Module, options: BatchNormConfig) -> None:
    """Set what ``options`` asks for on every BatchNorm, but for what happens at the start of the weights and of a run.

    Momentum is torch's: the weight of the newest batch in the running statistics. A frozen scale gets no gradients.

    Raises:
        ConfigError: An option for a network without BatchNorm, or for a kind of BatchNorm that cannot have it.
    """
    norms = batchnorms(model)
    if not norms and (problems := nothing_to_set(type(model).__name__, options)):
        raise ConfigError(problems)
    for norm in norms:
        if options.momentum is not None:
            norm.momentum = options.momentum
        if options.eps is not None:
            norm.eps = options.eps
        if options.frozen_scale is not None and norm.affine:
            nn.init.constant_(norm.weight.requires_grad_(False), options.frozen_scale)
    if options.ghost_size is not None:
        use_groups(norms, options.ghost_size)


def synchronised(model: nn.Module, *, world_size: int, device_type: str) -> tuple[nn.Module, str]:
    """The network with statistics over all ranks, where there are several and torch can do it.

    Args:
        model: On any device.
        world_size: Ranks.
        device_type: Where it is trained; torch's SyncBatchNorm is for GPUs only.

    Returns:
        The network, and what to say where it keeps its plain BatchNorm; an empty text otherwise.
    """
    if world_size == 1:
        return model, "model.batchnorm.sync=true: one rank, so plain BatchNorm is the same"
    if device_type != "cuda":
        return model, "model.batchnorm.sync=true: torch has none on a CPU, so each rank has its own statistics"
    return convert_sync_batchnorm(model), ""


def nothing_to_zero(network: str) -> Problem:
    """What to say where ``zero_init_last`` finds no residual block."""
    return Problem(
        f"model.batchnorm.zero_init_last=true: {network} has no residual block that ends in BatchNorm",
        "model.batchnorm.zero_init_last=false",
    )


def nothing_to_set(network: str, options: BatchNormConfig) -> list[Problem]:
    """What to say of each option that meets a network without BatchNorm."""
    given = {key: (getattr(options, key), off) for key, off in OFF.items()}
    return [
        Problem(f"model.batchnorm.{key}={_word(value)}: {network} has no BatchNorm", f"model.batchnorm.{key}={off}")
        for key, (value, off) in given.items()
        if _word(value) != off
    ]


def _word(value: float | bool | None) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
