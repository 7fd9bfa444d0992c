"""The classifier at a network's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import nn

from fasttrain.errors import ConfigError, Problem


def heads(model: nn.Module) -> list[nn.Module]:
    """The layers that make the logits: one, but for networks with several (distilled ones).

    timm's networks name theirs; of any other network it is the last linear layer.
    """
    named = getattr(model, "get_classifier", None)
    if named is None:
        linear: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Linear)]
        return linear[-1:]
    found = cast(Callable[[], Any], named)()
    parts = found if isinstance(found, (list, tuple)) else [found]
    return [part for part in parts if isinstance(part, nn.Module)]


def head_parameter_names(model: nn.Module) -> set[str]:
    """Names of the classifier's weights and biases, as ``model.named_parameters()`` gives them."""
    owned = {id(parameter) for head in heads(model) for parameter in head.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in owned}


def init_head(model: nn.Module, std: float) -> None:
    """Draw the classifier's weights from N(0, std); its bias becomes zero.

    Raises:
        ConfigError: The classifier is no linear layer.

    Source: arXiv:1706.02677, section 5.1 (std 0.01).
    """
    layers = heads(model)
    if not layers or not all(isinstance(layer, nn.Linear) for layer in layers):
        kinds = ", ".join(type(layer).__name__ for layer in layers) or "none"
        raise ConfigError(
            Problem(
                f"model.head_init_std={std:g}: the classifier of this network is no linear layer ({kinds})",
                "model.head_init_std=null",
            )
        )
    for layer in layers:
        weight, bias = layer.weight, layer.bias
        nn.init.normal_(cast(nn.Parameter, weight), std=std)
        if bias is not None:
            nn.init.zeros_(cast(nn.Parameter, bias))
