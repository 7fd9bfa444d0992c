"""What makes an optimizer impossible to run."""

from __future__ import annotations

from fasttrain.config.schema import (
    HybridConfig,
    MuonSGDConfig,
    NamedOptimizerConfig,
    RectifiedLARSConfig,
    RunConfig,
    SGDConfig,
)
from fasttrain.errors import ConfigError, Problem
from fasttrain.optimizer.share import transition_end_epochs

# Arguments of torch's and timm's classes that have a key of their own.
OWN_KEYS = ("lr", "momentum", "weight_decay")


def check(config: RunConfig) -> list[Problem]:
    """Rules between keys that need no library; types and bounds of single keys are checked before."""
    return [
        *_check_nesterov(config),
        *_check_transition(config),
        *_check_trust_ratio(config),
        *_check_sgd_part(config),
        *_check_arguments(config),
    ]


def check_libraries(config: RunConfig, num_classes: int) -> list[Problem]:
    """Problems of a name of torch or timm that only they can tell; imports them.

    The optimizer is built once over the network's parameters, without their storage.
    """
    if not isinstance(config.optimizer, NamedOptimizerConfig):
        return []
    from fasttrain.model.build import meta_model
    from fasttrain.optimizer.build import build_optimizer

    try:
        model = meta_model(config.model, num_classes)
    except ConfigError:
        # The network's own check says what is wrong with it.
        return []
    try:
        build_optimizer(config, model)
    except ConfigError as error:
        return error.problems
    return []


def _check_nesterov(config: RunConfig) -> list[Problem]:
    options = config.optimizer
    if not isinstance(options, SGDConfig) or not options.nesterov or options.momentum != 0:
        return []
    if config.schedule.momentum is not None:
        return []
    what = "optimizer.momentum=0 with optimizer.nesterov=true: there is nothing to look ahead along"
    return [Problem(what, "optimizer.nesterov=false")]


def _check_transition(config: RunConfig) -> list[Problem]:
    options = config.optimizer
    total = sum(stage.epochs for stage in config.stages)
    # Without stages there is nothing to compare with; the stage table's own check says so.
    if not isinstance(options, HybridConfig) or options.rms_lr == 0 or total == 0:
        return []
    center, period = options.transition_center_epochs, options.transition_period_epochs
    end = transition_end_epochs(center, period)
    if end <= total:
        return []
    # The place of the transition in the 90 epochs of arXiv:1711.04325.
    fix = (
        f"optimizer.transition_center_epochs={10 / 90 * total:.3g} "
        f"optimizer.transition_period_epochs={5 / 90 * total:.3g}"
    )
    what = (
        f"optimizer.transition_center_epochs={center:g} optimizer.transition_period_epochs={period:g}: "
        f"all of the update is SGD's only after epoch {end:g}, and the stages have {total} epochs in all"
    )
    return [Problem(what, fix)]


def _check_trust_ratio(config: RunConfig) -> list[Problem]:
    options = config.optimizer
    if not isinstance(options, RectifiedLARSConfig):
        return []
    low, high = options.min_trust_ratio, options.max_trust_ratio
    if low <= high:
        return []
    return [
        Problem(
            f"optimizer.min_trust_ratio={low:g}: above optimizer.max_trust_ratio={high:g}",
            f"optimizer.min_trust_ratio={high:g} optimizer.max_trust_ratio={low:g}",
        )
    ]


def _check_sgd_part(config: RunConfig) -> list[Problem]:
    """What concerns the parameters that ``muon_sgd`` leaves to SGD."""
    options = config.optimizer
    if not isinstance(options, MuonSGDConfig):
        return []
    problems = []
    if options.sgd_momentum == 0 and options.nesterov:
        what = "optimizer.sgd_momentum=0 with optimizer.nesterov=true: there is nothing to look ahead along"
        problems.append(Problem(what, "optimizer.nesterov=false"))
    decay = options.norm_and_bias_weight_decay
    if decay is not None and not options.decay_norm_and_bias:
        what = f"optimizer.norm_and_bias_weight_decay={decay:g}, but optimizer.decay_norm_and_bias=false"
        fix = "optimizer.decay_norm_and_bias=true, or optimizer.norm_and_bias_weight_decay=null"
        problems.append(Problem(what, fix))
    return problems


def _check_arguments(config: RunConfig) -> list[Problem]:
    options = config.optimizer
    if not isinstance(options, NamedOptimizerConfig):
        return []
    problems = [
        Problem(f"optimizer.args has {name}, which has a key of its own", f"optimizer.{name}={options.args[name]}")
        for name in OWN_KEYS
        if name in options.args
    ]
    betas = options.args.get("betas")
    if betas is None:
        return problems
    if not isinstance(betas, (list, tuple)) or len(betas) < 2:
        problems.append(Problem(f"optimizer.args.betas={betas}: a list was expected", "{betas: [0.9, 0.999]}"))
    elif betas[0] != options.momentum:
        problems.append(
            Problem(
                f"optimizer.args.betas={list(betas)}: its first is optimizer.momentum, which is {options.momentum:g}",
                f"optimizer.momentum={betas[0]}",
            )
        )
    return problems
