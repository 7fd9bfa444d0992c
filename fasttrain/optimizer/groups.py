"""Which parameters decay, and which of them a matrix optimizer takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fasttrain.model.head import head_parameter_names

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

Group = dict[str, Any]


def parameter_groups(
    model: nn.Module,
    *,
    weight_decay: float,
    decay_norm_and_bias: bool,
    norm_and_bias_lr_scale: float = 1.0,
) -> list[Group]:
    """Two groups: ``weights``, and ``norm_and_bias`` which does not decay unless asked.

    Args:
        model: The network; frozen parameters are left out.
        weight_decay: Of the weights.
        decay_norm_and_bias: Decay the other group alike.
        norm_and_bias_lr_scale: That group's learning rate over the schedule's.

    Returns:
        Groups for an optimizer, each with ``name``, ``params``, ``weight_decay`` and ``lr_scale``; those
        without parameters are left out. Which group a parameter is in does not depend on the numbers.

    Source: imagenet18, training/experimental_utils.py (no decay on BatchNorm and bias: top-5 93.2 -> 93.48).
    """
    others = norm_and_bias_names(model)
    return _with_limits(
        model,
        _group(model, "weights", trainable_names(model) - others, weight_decay),
        _group(
            model,
            "norm_and_bias",
            others,
            weight_decay if decay_norm_and_bias else 0.0,
            lr_scale=norm_and_bias_lr_scale,
        ),
    )


def matrix_parameter_groups(
    model: nn.Module,
    *,
    weight_decay: float,
    linear_weights: bool,
    sgd_lr_scale: float,
    sgd_weight_decay: float,
    decay_norm_and_bias: bool,
    sgd_momentum: float | None = None,
    norm_and_bias_lr_scale: float | None = None,
    norm_and_bias_weight_decay: float | None = None,
) -> list[Group]:
    """Three groups: ``matrices`` (key ``matrix`` true), and SGD's ``weights`` and ``norm_and_bias``.

    Args:
        model: The network; frozen parameters are left out.
        weight_decay: Of the matrices.
        linear_weights: Whether inner linear layers are matrices too.
        sgd_lr_scale: SGD's learning rate over the schedule's.
        sgd_weight_decay: Of SGD's weights.
        decay_norm_and_bias: Decay norm scales and biases too.
        sgd_momentum: Of SGD's groups, whatever the schedule says (key ``own_momentum``); None: the schedule's.
        norm_and_bias_lr_scale, norm_and_bias_weight_decay: Of norm scales and biases; None: as SGD's weights.
    """
    matrices = matrix_names(model, linear_weights=linear_weights)
    others = norm_and_bias_names(model)
    weights = trainable_names(model) - others - matrices
    norm_scale = sgd_lr_scale if norm_and_bias_lr_scale is None else norm_and_bias_lr_scale
    norm_decay = sgd_weight_decay if norm_and_bias_weight_decay is None else norm_and_bias_weight_decay
    norm_decay = norm_decay if decay_norm_and_bias else 0.0
    of_sgd: Group = {"matrix": False}
    if sgd_momentum is not None:
        of_sgd |= {"momentum": sgd_momentum, "own_momentum": sgd_momentum}
    return _with_limits(
        model,
        _group(model, "matrices", matrices, weight_decay) | {"matrix": True},
        _group(model, "weights", weights, sgd_weight_decay, lr_scale=sgd_lr_scale) | of_sgd,
        _group(model, "norm_and_bias", others, norm_decay, lr_scale=norm_scale) | of_sgd,
    )


def with_batchnorm_bias_lr(groups: list[Group], model: nn.Module, lr_scale: float) -> list[Group]:
    """The groups with BatchNorm's biases in one of their own, whose learning rate is ``lr_scale`` times theirs.

    A scale of 1 leaves the groups as they are.
    """
    if lr_scale == 1:
        return groups
    biases = {
        id(module.bias)
        for module in model.modules()
        if isinstance(module, _NormBase) and isinstance(module.bias, nn.Parameter)
    }
    parted: list[Group] = []
    for group in groups:
        own = [parameter for parameter in group["params"] if id(parameter) in biases]
        rest = [parameter for parameter in group["params"] if id(parameter) not in biases]
        parted.append(group | {"params": rest})
        parted.append(
            group | {"name": "batchnorm_bias", "params": own, "lr_scale": group["lr_scale"] * lr_scale},
        )
    return [group for group in parted if group["params"]]


def trainable_names(model: nn.Module) -> set[str]:
    """Names of the parameters that get gradients."""
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def norm_and_bias_names(model: nn.Module) -> set[str]:
    """Parameters that are no weights: all of normalisation layers, vectors and scalars, and what timm lists.

    timm's ``no_weight_decay()`` names such things as position embeddings.
    """
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, NORMS)
        for parameter in module.parameters(recurse=False)
    }
    listed = getattr(model, "no_weight_decay", None)
    spared = set(cast(Callable[[], Any], listed)()) if listed is not None else set()
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.ndim <= 1 or id(parameter) in norms or name in spared)
    }


def matrix_names(model: nn.Module, *, linear_weights: bool) -> set[str]:
    """Weights that act as one matrix: those of ungrouped convolutions (the stem's too) and linear layers.

    Left out: the classifier (airbench94_muon.py gives it to SGD), and convolutions with groups, whose
    filters see different inputs, so that making them orthogonal to each other means nothing.
    """
    matrices = set()
    for module in model.modules():
        convolution = isinstance(module, nn.Conv2d) and module.groups == 1
        if convolution or (linear_weights and isinstance(module, nn.Linear)):
            matrices.add(id(module.weight))
    names = {name for name, parameter in model.named_parameters() if id(parameter) in matrices}
    return (names & trainable_names(model)) - head_parameter_names(model) - norm_and_bias_names(model)


def _group(model: nn.Module, name: str, members: set[str], weight_decay: float, lr_scale: float = 1.0) -> Group:
    params = [parameter for key, parameter in model.named_parameters() if key in members]
    return {"name": name, "params": params, "weight_decay": weight_decay, "lr_scale": lr_scale}


def _with_limits(model: nn.Module, *groups: Group) -> list[Group]:
    """The groups, those with parameters; what a network trains in its first epochs only is split off.

    A network says so with ``trained_epochs()``, a dict of names; such a group has the key ``trained_epochs``.
    """
    limits = _trained_epochs(model)
    split = []
    for group in groups:
        for epochs in dict.fromkeys(limits.get(id(parameter)) for parameter in group["params"]):
            params = [parameter for parameter in group["params"] if limits.get(id(parameter)) == epochs]
            own = {} if epochs is None else {"name": f"{group['name']}_first_epochs", "trained_epochs": epochs}
            split.append({**group, "params": params, **own})
    return split


def _trained_epochs(model: nn.Module) -> dict[int, float]:
    """Epochs in which a parameter is trained, by its id; without an entry: all."""
    listed = getattr(model, "trained_epochs", None)
    by_name = cast(Callable[[], dict[str, float]], listed)() if listed is not None else {}
    return {id(model.get_parameter(name)): epochs for name, epochs in by_name.items()}
