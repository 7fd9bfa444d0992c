"""What makes a schedule impossible to run: rules between its keys, the peak and the stage table."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrain.config.schema import RunConfig, StepScheduleConfig
from fasttrain.errors import Problem


def check(config: RunConfig) -> list[Problem]:
    """Problems of ``config.schedule``; types and bounds of single keys are checked before."""
    return [*_check_warmup(config), *_check_end_lr(config), *_check_drops(config), *_check_momentum(config)]


def _check_warmup(config: RunConfig) -> list[Problem]:
    warmup_epochs = config.schedule.warmup_epochs
    total = sum(stage.epochs for stage in config.stages)
    # Without stages there is nothing to compare with; the stage table's own check says so.
    if not config.stages or warmup_epochs < total:
        return []
    return [
        Problem(
            f"schedule.warmup_epochs={warmup_epochs:g}: the stages have {total} epochs in all, "
            "and the warm-up must end before the run does",
            # A fifth of the run, about the 5 of 28 epochs of the DAWNBench recipe at batch 2,048.
            f"schedule.warmup_epochs={total / 5:g}",
        )
    ]


def _check_end_lr(config: RunConfig) -> list[Problem]:
    if config.schedule.end_lr <= config.optimizer.lr:
        return []
    return [
        Problem(
            f"schedule.end_lr={config.schedule.end_lr:g}: above the peak, "
            f"optimizer.lr={config.optimizer.lr:g}; the learning rate would rise after the warm-up",
            "schedule.end_lr=0",
        )
    ]


def _check_drops(config: RunConfig) -> list[Problem]:
    if not isinstance(config.schedule, StepScheduleConfig):
        return []
    drops = list(config.schedule.drop_at_frac)
    shown = f"schedule.drop_at_frac={_as_list(drops)}"
    fix = "schedule.drop_at_frac=[0.333,0.667,0.889]"
    if not drops:
        return [Problem(f"{shown}: a step schedule needs at least one drop", f"{fix}, or schedule=linear")]
    if not all(0 < drop < 1 for drop in drops):
        what = "each drop is a share of the epochs after the warm-up, more than 0 and less than 1"
        return [Problem(f"{shown}: {what}", fix)]
    if drops != sorted(set(drops)):
        return [Problem(f"{shown}: drops must rise", f"schedule.drop_at_frac={_as_list(sorted(set(drops)))}")]
    return []


def _check_momentum(config: RunConfig) -> list[Problem]:
    cycle = config.schedule.momentum
    if cycle is None or cycle.high >= cycle.low:
        return []
    return [
        Problem(
            f"schedule.momentum.high={cycle.high:g}: below schedule.momentum.low={cycle.low:g}; "
            "momentum is high where the learning rate is low",
            f"schedule.momentum.high={cycle.low:g} schedule.momentum.low={cycle.high:g}",
        )
    ]


def _as_list(values: Sequence[float]) -> str:
    """A list as it is written on the command line, without spaces."""
    return "[" + ",".join(f"{value:g}" for value in values) + "]"
