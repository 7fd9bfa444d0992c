"""The optimizer of a run, and the numbers that move from step to step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from fasttrain.config.schema import (
    HybridConfig,
    MuonSGDConfig,
    NamedOptimizerConfig,
    RectifiedLARSConfig,
    RunConfig,
    SGDConfig,
)
from fasttrain.optimizer.groups import Group, matrix_parameter_groups, parameter_groups, with_batchnorm_bias_lr
from fasttrain.optimizer.hybrid import HybridSGD
from fasttrain.optimizer.momentum_sgd import MomentumSGD
from fasttrain.optimizer.multi_tensor import MultiTensorOptimizer
from fasttrain.optimizer.muon_sgd import MuonSGD
from fasttrain.optimizer.named import build_named
from fasttrain.optimizer.rectified_lars import RectifiedLARS
from fasttrain.optimizer.share import sgd_share

# Settings of a group that the machine or the grouping decides, beside those named in the config.
OF_THE_RUN = (
    "name",
    "lr_scale",
    "own_momentum",
    "trained_epochs",
    "betas",
    "matrix",
    "trust",
    "fused",
    "foreach",
    "capturable",
)


def build_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that ``config.optimizer`` describes, over the parameters of ``model``.

    Each parameter group has a ``name`` and a ``lr_scale``, its learning rate over the schedule's. A loaded
    state brings the averages; the settings stay those of this config.

    Args:
        config: The run.
        model: On the device on which it is trained.

    Raises:
        ConfigError: A name, argument or value that the optimizer's library refuses.
    """
    options = config.optimizer
    if isinstance(options, NamedOptimizerConfig):
        cycles = config.schedule.momentum is not None
        optimizer = build_named(options, _plain_groups(config, model), _first_momentum(config), cycles=cycles)
        settings: Iterable[str] = options.args
    elif isinstance(options, SGDConfig):
        optimizer = _build_sgd_like(config, options, model)
        settings = ()
    else:
        raise TypeError(f"no optimizer is built from {type(options).__name__}")
    _keep_settings(optimizer, {field.name for field in fields(options)} | {*settings, *OF_THE_RUN})
    return optimizer


def set_hyperparameters(optimizer: torch.optim.Optimizer, *, lr: float, momentum: float, epochs_done: float) -> None:
    """Set what the next update uses, in every group; to be called before each step.

    Values held as tensors are filled in place. A group with ``trained_epochs`` (see ``groups.py``) has a learning
    rate that falls, beside what the schedule does, linearly to zero in those epochs, and stays there.

    Args:
        optimizer: From ``build_optimizer``.
        lr: The schedule's learning rate; a group's ``lr_scale`` multiplies it.
        momentum: Momentum, or the first of Adam's ``betas``.
        epochs_done: Epochs completed after the update, fractional; the hybrid's transition goes by it.
    """
    for group in optimizer.param_groups:
        left = max(0.0, 1 - epochs_done / group["trained_epochs"]) if "trained_epochs" in group else 1.0
        _set(group, "lr", lr * group.get("lr_scale", 1.0) * left)
        if "momentum" in group:
            _set(group, "momentum", group.get("own_momentum", momentum))
        elif "betas" in group:
            group["betas"] = (momentum, *group["betas"][1:])
        if "sgd_share" in group:
            center, period = group["transition_center_epochs"], group["transition_period_epochs"]
            _set(group, "sgd_share", sgd_share(epochs_done, center, period))


def hold_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Turn an optimizer's moving numbers into 0-dim tensors beside its parameters; of torch's and timm's only ``lr``.

    A step of an own optimizer captured after this follows ``set_hyperparameters`` without another capture.
    """
    if isinstance(optimizer, MultiTensorOptimizer):
        optimizer.hold_on_device()
        return
    for group in optimizer.param_groups:
        device = group["params"][0].device
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)


def _build_sgd_like(config: RunConfig, options: SGDConfig, model: nn.Module) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {
        "lr": options.lr,
        "momentum": _first_momentum(config),
        "nesterov": options.nesterov,
    }
    if isinstance(options, HybridConfig):
        return HybridSGD(
            _plain_groups(config, model),
            transition_center_epochs=options.transition_center_epochs,
            transition_period_epochs=options.transition_period_epochs,
            rms_lr=options.rms_lr,
            rms_decay=options.rms_decay,
            rms_eps=options.rms_eps,
            **shared,
        )
    if isinstance(options, RectifiedLARSConfig):
        groups = _plain_groups(config, model, norm_and_bias_lr_scale=options.norm_and_bias_lr_scale)
        return RectifiedLARS(
            [group | {"trust": group["name"] == "weights"} for group in groups],
            eta=options.eta,
            min_trust_ratio=options.min_trust_ratio,
            max_trust_ratio=options.max_trust_ratio,
            **shared,
        )
    if isinstance(options, MuonSGDConfig):
        groups = matrix_parameter_groups(
            model,
            weight_decay=options.weight_decay,
            linear_weights=options.linear_weights,
            sgd_lr_scale=options.sgd_lr_scale,
            sgd_weight_decay=options.sgd_weight_decay,
            decay_norm_and_bias=options.decay_norm_and_bias,
            sgd_momentum=options.sgd_momentum,
            norm_and_bias_lr_scale=options.norm_and_bias_lr_scale,
            norm_and_bias_weight_decay=options.norm_and_bias_weight_decay,
        )
        return MuonSGD(
            with_batchnorm_bias_lr(groups, model, config.model.batchnorm.bias_lr_scale),
            newton_schulz_steps=options.newton_schulz_steps,
            newton_schulz_dtype=options.newton_schulz_dtype,
            normalize_weights=options.normalize_weights,
            **shared,
        )
    groups = _plain_groups(config, model)
    if groups[0]["params"][0].is_cuda:
        return MomentumSGD(groups, **shared)
    return torch.optim.SGD(groups, foreach=True, fused=False, **shared)


def _plain_groups(config: RunConfig, model: nn.Module, **scales: float) -> list[Group]:
    groups = parameter_groups(
        model,
        weight_decay=config.optimizer.weight_decay,
        decay_norm_and_bias=config.optimizer.decay_norm_and_bias,
        **scales,
    )
    return with_batchnorm_bias_lr(groups, model, config.model.batchnorm.bias_lr_scale)


def _first_momentum(config: RunConfig) -> float:
    cycle = config.schedule.momentum
    return config.optimizer.momentum if cycle is None else cycle.high


def _keep_settings(optimizer: torch.optim.Optimizer, keys: set[str]) -> None:
    """Let ``load_state_dict`` bring averages and counters, but no setting of another config or machine."""
    kept = [
        {key: value for key, value in group.items() if key in keys and not isinstance(value, torch.Tensor)}
        for group in optimizer.param_groups
    ]

    def restore(loaded: torch.optim.Optimizer) -> None:
        for group, settings in zip(loaded.param_groups, kept, strict=True):
            group.update(settings)

    # timm's Lookahead leaves loading to the optimizer inside it.
    inner = getattr(optimizer, "_base_optimizer", optimizer)
    inner.register_load_state_dict_post_hook(restore)


def _set(group: dict[str, Any], key: str, value: float) -> None:
    if isinstance(group[key], torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value
