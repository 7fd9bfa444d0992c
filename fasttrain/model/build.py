"""Networks by their names: timm's, and the own ones, which register themselves with timm."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import timm
import torch
from timm.layers import BlurPool2d
from torch import nn

from fasttrain.config.schema import ModelConfig
from fasttrain.errors import ConfigError, MachineError, Problem, first_line
from fasttrain.model import batchnorm, hub, whitened  # noqa: F401  (whitened is imported to be registered)
from fasttrain.model.ensemble import ensemble_of
from fasttrain.model.head import init_head
from fasttrain.model.kernels import use_kernels
from fasttrain.model.weights import load_weights

# timm's ResNets take the class of their anti-aliasing layer, and YAML has only names.
AA_LAYERS = {"blurpool": BlurPool2d, "avgpool": nn.AvgPool2d}


def build_model(config: ModelConfig, num_classes: int) -> nn.Module:
    """The network of a run, on the CPU, in training mode, with the options that the config asks for.

    Args:
        config: Name, further arguments, BatchNorm options and where the first weights come from.
        num_classes: Outputs of the classifier.

    Returns:
        The network: float32 images NCHW in, logits ``[N, num_classes]`` out; of an ensemble see ``ensemble.py``.

    Raises:
        ConfigError: An unknown name or argument, an option that finds nothing to act on, or weights of
            another network in ``model.init_from``.
        MachineError: Published weights that cannot be fetched.
    """
    if config.ensemble > 1:
        model: nn.Module = ensemble_of([_build_network(config, num_classes) for _ in range(config.ensemble)])
    else:
        model = _build_network(config, num_classes)
    if config.init_from is not None:
        load_weights(model, config.init_from, name=config.name)
    return model


def meta_model(config: ModelConfig, num_classes: int) -> nn.Module:
    """The network without storage, for questions about its parameters and the images it takes.

    Raises:
        ConfigError: As ``build_model``.
    """
    if not timm.is_model(config.name):
        raise ConfigError(unknown_network(config.name))
    if not _has_tag(config.name):
        raise ConfigError(_unknown_tag(config.name))
    try:
        with torch.device("meta"):
            return timm.create_model(config.name, num_classes=num_classes, **timm_arguments(config))
    except Exception as error:  # a network's constructor raises what it likes
        raise ConfigError(_refused_arguments(config, error)) from error


def timm_arguments(config: ModelConfig) -> dict[str, Any]:
    """``model.args`` for timm, the name of an anti-aliasing layer replaced by its class."""
    arguments = dict(config.args)
    layer = arguments.get("aa_layer")
    return arguments | {"aa_layer": AA_LAYERS[layer]} if layer in AA_LAYERS else arguments


def takes_argument(model: nn.Module, name: str) -> bool:
    """Whether the network's class has a constructor argument of this name."""
    return name in inspect.signature(type(model)).parameters


def unknown_network(name: str) -> Problem:
    """What to say about a name that timm does not have, with the closest that it has."""
    known = timm.list_models()
    close = difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.6)
    # A prefix such as "resnet" is too short to come close to any whole name.
    close = close or [known_name for known_name in known if known_name.startswith(name.lower())][:5]
    fix = f"did you mean {', '.join(f'model.name={match}' for match in close)}?" if close else ""
    every = "all names: python -c 'import timm; print(*timm.list_models())'"
    return Problem(f"model.name={name}: timm {timm.__version__} has no such network", fix or every)


def _build_network(config: ModelConfig, num_classes: int) -> nn.Module:
    # The class is known only from an instance; one on the meta device costs no memory and no random numbers.
    arguments = timm_arguments(config)
    zero_init = config.batchnorm.zero_init_last
    timm_zero_inits = takes_argument(meta_model(config, num_classes), "zero_init_last")
    if zero_init is not None and timm_zero_inits:
        arguments["zero_init_last"] = zero_init
    model = _create(config, num_classes, arguments)
    if zero_init and not timm_zero_inits:
        batchnorm.zero_init_last(model)
    batchnorm.apply_options(model, config.batchnorm)
    use_kernels(model, config.kernels)
    if config.head_init_std is not None:
        init_head(model, config.head_init_std)
    return model


def _has_tag(name: str) -> bool:
    """Whether timm knows the weights that a name has behind its dot; true without a dot."""
    try:
        timm.models.get_pretrained_cfg(name)
    except RuntimeError:
        return False
    return True


def _unknown_tag(name: str) -> Problem:
    network, _, tag = name.partition(".")
    known = [found for found in timm.list_pretrained(f"{network}.*") if found.startswith(f"{network}.")]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    tags = f" (it has {', '.join(found.partition('.')[2] for found in known)})" if known else ""
    fix = " or ".join(f"model.name={found}" for found in [network, *close])
    return Problem(f"model.name={name}: timm {timm.__version__} has no weights {tag} of {network}{tags}", fix)


def _create(config: ModelConfig, num_classes: int, arguments: dict[str, Any]) -> nn.Module:
    if config.pretrained and (unreachable := hub.unreachable(config.name)):
        raise MachineError(_cannot_fetch(config.name, unreachable))
    try:
        with hub.quiet():
            return timm.create_model(config.name, pretrained=config.pretrained, num_classes=num_classes, **arguments)
    except Exception as error:  # the hub client's errors share no base class
        if not config.pretrained:
            raise
        raise MachineError(_cannot_fetch(config.name, first_line(error))) from error


def _cannot_fetch(name: str, reason: str) -> Problem:
    what = f"model.pretrained=true: cannot fetch the weights of {name}: {reason}"
    return Problem(what, "model.pretrained=false")


def _refused_arguments(config: ModelConfig, error: Exception) -> Problem:
    given = "{" + ", ".join(f"{key}: {value}" for key, value in dict(config.args).items()) + "}"
    return Problem(
        f"model.args={given}: {config.name} cannot be built with them: {first_line(error)}",
        f"see the arguments of timm's {config.name}, or model.args={{}}",
    )
