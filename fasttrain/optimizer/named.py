"""Optimizers of torch and timm, reached by their names there."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch

from fasttrain.config.schema import OPTIONS, NamedOptimizerConfig
from fasttrain.errors import ConfigError, Problem, first_line
from fasttrain.optimizer.groups import Group

# timm's prefix for an optimizer inside its Lookahead.
LOOKAHEAD = "lookahead_"
# timm's prefixes for optimizers of libraries that it does not bring: APEX and bitsandbytes.
OF_OTHER_LIBRARIES = ("fused", "bnb")
# Classes that the training loop cannot run as they are meant, and why.
UNFIT = {
    "SparseAdam": "this optimizer takes sparse gradients only, and the networks' are dense",
    "Rprop": "this optimizer reads the learning rate at its first step only, so it would ignore the schedule",
}


def build_named(
    config: NamedOptimizerConfig, groups: list[Group], momentum: float, *, cycles: bool = False
) -> torch.optim.Optimizer:
    """An optimizer of the library that ``config.kind`` names.

    Args:
        config: Name, learning rate, further arguments.
        groups: Parameter groups with their own ``weight_decay``.
        momentum: Of the first step: ``momentum``, or the first of ``betas``.
        cycles: Whether the momentum moves with the schedule (``schedule.momentum``).

    Raises:
        ConfigError: An unknown name or argument, a setting that the class would ignore, or parameters or
            values that it refuses.
    """
    problems = named_problems(config, cycles=cycles)
    if problems:
        raise ConfigError(problems)
    arguments = {"lr": config.lr, **config.args}
    parameters = _parameters(config)
    if "momentum" in parameters:
        arguments["momentum"] = momentum
    elif "betas" in parameters and (betas := _betas(config)) is not None:
        arguments["betas"] = (momentum, *list(betas)[1:])
    try:
        optimizer = _construct(config, groups, arguments)
    except Exception as error:  # constructors of two libraries raise what they like
        raise ConfigError(_refused(config, error)) from error
    if cycles and not {"momentum", "betas"} & optimizer.param_groups[0].keys():
        raise ConfigError(_no_cycle(config))
    return optimizer


def _construct(config: NamedOptimizerConfig, groups: list[Group], arguments: dict[str, Any]) -> torch.optim.Optimizer:
    if config.kind == "torch":
        return getattr(torch.optim, config.name)(groups, **arguments)
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(groups, opt=config.name, weight_decay=config.weight_decay, **arguments)


def named_problems(config: NamedOptimizerConfig, *, cycles: bool = False) -> list[Problem]:
    """What is wrong with a name and its arguments, all of it; ``cycles`` as for ``build_named``."""
    if config.name not in known_names(config.kind):
        return [_unknown_name(config)]
    try:
        _class(config)
    except Exception as error:  # a library that is not here, or no GPU for it
        return [_not_loaded(config, error)]
    if reason := _unfit(config):
        fix = "optimizer.name=AdamW" if config.kind == "torch" else "optimizer.name=adamw"
        return [Problem(f"optimizer.name={config.name}: {reason}", fix)]
    return [*_unknown_arguments(config), *_ignored_settings(config, cycles=cycles)]


def _unfit(config: NamedOptimizerConfig) -> str:
    """Why the training loop cannot run this optimizer; empty where it can."""
    if _parameters(config) == {"closure"}:
        return "this optimizer computes the loss several times a step, which the training loop does not"
    if _second_order(config):
        return "this optimizer needs second derivatives of the loss, which the training loop does not compute"
    return UNFIT.get(_class(config).__name__, "")


def _unknown_arguments(config: NamedOptimizerConfig) -> list[Problem]:
    parameters = _parameters(config)
    problems = []
    for name in config.args:
        if name not in parameters and "kwargs" not in parameters:
            close = difflib.get_close_matches(name, parameters, n=3, cutoff=0.6)
            taken = ", ".join(sorted(parameters - {"lr", "momentum", "weight_decay", "params"}))
            fix = f"did you mean {', '.join(close)}?" if close else f"it takes {taken}"
            problems.append(
                Problem(f"optimizer.args has {name}, which {config.name} of {config.kind} does not take", fix)
            )
    return problems


def _ignored_settings(config: NamedOptimizerConfig, *, cycles: bool) -> list[Problem]:
    """Settings that the class would take no notice of."""
    parameters = _parameters(config)
    problems = []
    if "momentum" not in parameters and ("betas" not in parameters or _betas(config) is None):
        if config.momentum != 0:
            what = f"optimizer.momentum={config.momentum:g}: {config.name} of {config.kind} has no momentum"
            problems.append(Problem(what, "optimizer.momentum=0"))
        if cycles:
            problems.append(_no_cycle(config))
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


def _betas(config: NamedOptimizerConfig) -> Any:
    """The ``betas`` given, or the class's own; None for a class that goes without them by default."""
    return config.args.get("betas") or inspect.signature(_class(config)).parameters["betas"].default


def _no_cycle(config: NamedOptimizerConfig) -> Problem:
    what = f"schedule.momentum: {config.name} of {config.kind} has no momentum that could move with the learning rate"
    return Problem(what, "schedule.momentum=null")


def _not_loaded(config: NamedOptimizerConfig, error: Exception) -> Problem:
    """An optimizer of a library beside timm; the fix is timm's own of that name, where it has one."""
    own = config.name
    for prefix in (LOOKAHEAD, *OF_OTHER_LIBRARIES):
        own = own.removeprefix(prefix)
    own = own.removesuffix("8bit")
    fix = f"optimizer.name={own if own in known_names(config.kind) else 'adamw'}"
    return Problem(f"optimizer.name={config.name}: {config.kind} cannot load it here: {first_line(error)}", fix)


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
    given = "".join(f" optimizer.args.{name}={value}" for name, value in config.args.items())
    hint = "optimizer=muon_sgd, which takes convolutions too" if "muon" in config.name.lower() else ""
    return Problem(
        f"optimizer.name={config.name}{given}: {config.kind} refuses this network or these values: {first_line(error)}",
        hint,
    )
