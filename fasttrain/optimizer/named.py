"""Optimizers of torch and timm, reached by their names there."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch

from fasttrain.config.schema import OPTIONS, NamedOptimizerConfig
from fasttrain.errors import ConfigError, Problem
from fasttrain.optimizer.groups import Group

# timm's prefix for an optimizer inside its Lookahead.
LOOKAHEAD = "lookahead_"


def build_named(config: NamedOptimizerConfig, groups: list[Group], momentum: float) -> torch.optim.Optimizer:
    """An optimizer of the library that ``config.kind`` names.

    Args:
        config: Name, learning rate, further arguments.
        groups: Parameter groups with their own ``weight_decay``.
        momentum: Of the first step: ``momentum``, or the first of ``betas``.

    Raises:
        ConfigError: An unknown name or argument, a setting that the class would ignore, or parameters or
            values that it refuses.
    """
    problems = named_problems(config)
    if problems:
        raise ConfigError(problems)
    arguments = {"lr": config.lr, **config.args}
    parameters = _parameters(config)
    if "momentum" in parameters:
        arguments["momentum"] = momentum
    elif "betas" in parameters:
        betas = arguments.get("betas") or _default_betas(config)
        arguments["betas"] = (momentum, *list(betas)[1:])
    try:
        if config.kind == "torch":
            return getattr(torch.optim, config.name)(groups, **arguments)
        from timm.optim import create_optimizer_v2

        return create_optimizer_v2(groups, opt=config.name, weight_decay=config.weight_decay, **arguments)
    except Exception as error:  # constructors of two libraries raise what they like
        raise ConfigError(_refused(config, error)) from error


def named_problems(config: NamedOptimizerConfig) -> list[Problem]:
    """What is wrong with a name and its arguments, all of it."""
    if config.name not in known_names(config.kind):
        return [_unknown_name(config)]
    parameters = _parameters(config)
    if parameters == {"closure"}:
        return [
            Problem(
                f"optimizer.name={config.name}: this optimizer computes the loss several times a step, "
                "which the training loop does not",
                "optimizer.name=AdamW" if config.kind == "torch" else "optimizer.name=adamw",
            )
        ]
    if _second_order(config):
        return [
            Problem(
                f"optimizer.name={config.name}: this optimizer needs second derivatives of the loss, "
                "which the training loop does not compute",
                "optimizer.name=adamw",
            )
        ]
    problems = []
    for name in config.args:
        if name not in parameters and "kwargs" not in parameters:
            close = difflib.get_close_matches(name, parameters, n=3, cutoff=0.6)
            taken = ", ".join(sorted(parameters - {"lr", "momentum", "weight_decay", "params"}))
            fix = f"did you mean {', '.join(close)}?" if close else f"it takes {taken}"
            problems.append(
                Problem(f"optimizer.args has {name}, which {config.name} of {config.kind} does not take", fix)
            )
    if config.momentum != 0 and not {"momentum", "betas"} & parameters:
        what = f"optimizer.momentum={config.momentum:g}: {config.name} of {config.kind} has no momentum"
        problems.append(Problem(what, "optimizer.momentum=0"))
    if config.weight_decay != 0 and "weight_decay" not in parameters:
        what = f"optimizer.weight_decay={config.weight_decay:g}: {config.name} of {config.kind} has no decay"
        problems.append(Problem(what, "optimizer.weight_decay=0"))
    return problems


def known_names(kind: str) -> list[str]:
    """Names that an optimizer can have in ``torch`` or ``timm``."""
    if kind == "torch":
        return sorted(
            name
            for name, value in vars(torch.optim).items()
            if inspect.isclass(value)
            and issubclass(value, torch.optim.Optimizer)
            and value is not torch.optim.Optimizer
        )
    from timm.optim import list_optimizers

    names = [str(name) for name in list_optimizers()]
    return [*names, *(LOOKAHEAD + name for name in names)]


def _class(config: NamedOptimizerConfig) -> Any:
    if config.kind == "torch":
        return getattr(torch.optim, config.name)
    from timm.optim import get_optimizer_class

    return get_optimizer_class(config.name.removeprefix(LOOKAHEAD), bind_defaults=False)


def _parameters(config: NamedOptimizerConfig) -> set[str]:
    """Names of the constructor's arguments; only ``closure`` for a class whose step needs one."""
    chosen = _class(config)
    closure = inspect.signature(chosen.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        return {"closure"}
    return set(inspect.signature(chosen).parameters)


def _second_order(config: NamedOptimizerConfig) -> bool:
    if config.kind == "torch":
        return False
    from timm.optim import get_optimizer_info

    return bool(get_optimizer_info(config.name.removeprefix(LOOKAHEAD)).second_order)


def _default_betas(config: NamedOptimizerConfig) -> Any:
    return inspect.signature(_class(config)).parameters["betas"].default


def _unknown_name(config: NamedOptimizerConfig) -> Problem:
    """The closest names of this library, of the other, and of this project's own optimizers."""
    wanted = config.name.lower()
    found = [
        line
        for kind in ("torch", "timm")
        for line in _close_in(wanted, kind, switch="" if kind == config.kind else f"optimizer={kind} ")
    ]
    own = [name for name in OPTIONS["optimizer"] if name not in ("torch", "timm")]
    found += [f"optimizer={name}" for name in difflib.get_close_matches(wanted, own, n=1, cutoff=0.6)]
    library = {"torch": "torch.optim", "timm": "timm.optim"}[config.kind]
    names = [name for name in known_names(config.kind) if not name.startswith(LOOKAHEAD)]
    fix = f"did you mean {', '.join(found)}?" if found else f"one of {', '.join(names)}"
    return Problem(f"optimizer.name={config.name}: {library} has no such optimizer", fix)


def _close_in(wanted: str, kind: str, *, switch: str) -> list[str]:
    # torch's names are of mixed case: AdamW is what "adamw" means.
    names = {name.lower(): name for name in known_names(kind)}
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.7)
    return [f"{switch}optimizer.name={names[match]}" for match in close]


def _refused(config: NamedOptimizerConfig, error: Exception) -> Problem:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    given = "".join(f" optimizer.args.{name}={value}" for name, value in config.args.items())
    hint = "optimizer=muon_sgd, which takes convolutions too" if "muon" in config.name.lower() else ""
    return Problem(
        f"optimizer.name={config.name}{given}: {config.kind} refuses this network or these values: {reason}",
        hint,
    )
