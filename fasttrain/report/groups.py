"""Runs that differ in their seed only are one group, with mean and spread; groups stand side by side."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fasttrain.config.flat import OF_THE_PROCESS
from fasttrain.report.finished_run import Run
from fasttrain.report.result import accuracy, duration, wanted
from fasttrain.report.student_t import t_quantile

SCHEMA = 1

# Figures whose mean is given with an interval beside the table, and how they are called.
WITH_INTERVAL = {
    "top1": "top1",
    "plain_top1": "top1 without test-time augmentation",
    "raw_top1": "top1 of the raw weights",
    "seconds": "seconds",
    "seconds_with_final_validation": "seconds with the final validation",
}

# Settings that do not change what is trained, how fast or towards what.
NOT_COMPARED = ("seed", *OF_THE_PROCESS)

# Figures of result.json that are averaged over the runs of a group.
FIGURES = (
    "seconds_to_target",
    "wall_seconds_to_target",
    "epochs_to_target",
    "seconds",
    "wall_seconds",
    "top1",
    "top5",
    "best_top1",
    "best_top5",
    "cost_usd",
    "seconds_with_final_validation",
    "plain_top1",
    "raw_top1",
    "raw_top5",
)


@dataclass(frozen=True)
class Summary:
    """A figure over the runs that have it.

    Attributes:
        n: Runs that have it.
        mean, median, min, max: Of these.
        std: Sample standard deviation; None for one run.
        standard_error: Of the mean: std / sqrt(n).
        half_interval: Half the width of the mean's 95 % interval, by Student's t; None for one run.
    """

    n: int
    mean: float
    median: float
    min: float
    max: float
    std: float | None
    standard_error: float | None
    half_interval: float | None


@dataclass(frozen=True)
class Group:
    """Runs of the same settings on the same hardware.

    Attributes:
        name: A, B, ... in order of appearance.
        runs: In the order given.
        differs: Settings in which the groups of a comparison differ, with this group's values; those that
            its options lack are left out.
    """

    name: str
    runs: tuple[Run, ...]
    differs: Mapping[str, Any]

    @property
    def target(self) -> tuple[str, float]:
        """Metric and percent."""
        target = self.runs[0].result["target"]
        return target["metric"], target["value"]

    @property
    def reached(self) -> int:
        """Runs that reached the target."""
        return sum(bool(run.result["reached"]) for run in self.runs)

    def summary(self, figure: str) -> Summary | None:
        """One of ``FIGURES`` over the runs; None where no run has it."""
        return summarize([run.result[figure] for run in self.runs])


def summarize(values: Sequence[float | None]) -> Summary | None:
    """Mean, median and spread of the values that are there."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    error = None if std is None else std / math.sqrt(len(known))
    return Summary(
        n=len(known),
        mean=statistics.fmean(known),
        median=statistics.median(known),
        min=min(known),
        max=max(known),
        std=std,
        standard_error=error,
        half_interval=None if error is None else t_quantile(len(known) - 1) * error,
    )


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs grouped by all settings but the seed, and by hardware."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(json.dumps(compared_settings(run), sort_keys=True), []).append(run)
    settings = [json.loads(key) for key in grouped]
    keys = list(dict.fromkeys(key for known in settings for key in known))
    differing = [key for key in keys if any(known.get(key) != settings[0].get(key) for known in settings)]
    return [
        Group(
            name=_letters(index),
            runs=tuple(members),
            differs={key: known[key] for key in differing if key in known},
        )
        for index, (known, members) in enumerate(zip(settings, grouped.values(), strict=True))
    ]


def compared_settings(run: Run) -> dict[str, Any]:
    """The settings by which runs are told apart, as dotted keys, and the hardware."""
    config = {key: value for key, value in run.config.items() if key not in NOT_COMPARED}
    return {**_flat(config), "hardware": run.result["hardware"], "num_devices": run.result["num_devices"]}


def comparison(groups: Sequence[Group]) -> dict[str, Any]:
    """The content of ``--json FILE``."""
    return {
        "schema": SCHEMA,
        "groups": [
            {
                "name": group.name,
                "recipe": group.runs[0].result["recipe"],
                "runs": [str(run.path) for run in group.runs],
                "seeds": [run.result["seed"] for run in group.runs],
                "commits": [run.result["commit"] for run in group.runs],
                "hardware": group.runs[0].result["hardware"],
                "differs": dict(group.differs),
                "target": {"metric": group.target[0], "value": group.target[1]},
                "reached": group.reached,
                "n": len(group.runs),
                "figures": {
                    figure: None if (known := group.summary(figure)) is None else vars(known) for figure in FIGURES
                },
            }
            for group in groups
        ],
    }


HEADER = (
    "group",
    "recipe",
    "n",
    "seeds",
    "target",
    "reached",
    "time to target",
    "median",
    "wall time",
    "epochs",
    "best top1",
    "last top1",
    "last top5",
    "95% of the mean",
)
TEXT_COLUMNS = ("group", "recipe", "seeds", "target")


def table(groups: Sequence[Group]) -> list[list[str]]:
    """The cells of the comparison, a row a group, by the columns of ``HEADER``; a spread is one std.

    The interval is that of the mean of the target's metric after the last epoch.
    """
    return [
        [
            group.name,
            str(group.runs[0].result["recipe"]),
            str(len(group.runs)),
            _seeds([run.result["seed"] for run in group.runs]),
            f"{wanted(group.target[1])}% {group.target[0]}",
            f"{group.reached} of {len(group.runs)}",
            _time(group.summary("seconds_to_target")),
            "-" if (known := group.summary("seconds_to_target")) is None else duration(known.median),
            _time(group.summary("wall_seconds_to_target")),
            _epochs(group.summary("epochs_to_target")),
            _accuracy(group.summary("best_top1")),
            _accuracy(group.summary("top1")),
            _accuracy(group.summary("top5")),
            _interval(group.summary(group.target[0])),
        ]
        for group in groups
    ]


def notes(groups: Sequence[Group]) -> list[str]:
    """What a reader must know beside the table: which runs, how groups differ, what spoils a comparison."""
    lines = []
    for group in groups:
        lines.append(f"{group.name}: {', '.join(str(run.path) for run in group.runs)}")
        if group.differs:
            lines.append("   " + ", ".join(f"{key}={_word(value)}" for key, value in group.differs.items()))
        seeds = [run.result["seed"] for run in group.runs]
        if len(set(seeds)) < len(seeds):
            lines.append(f"   some of its runs share a seed ({_seeds(seeds)}): they are not independent")
        if 0 < group.reached < len(group.runs):
            lines.append("   its times are the mean of the runs that reached the target only")
        if len(group.runs) > 1:
            lines.append("   " + _intervals(group))
    lines += _shared_lr(groups)
    commits = dict.fromkeys(str(run.result["commit"]) for group in groups for run in group.runs)
    if len(commits) > 1:
        lines.append(f"the runs were made by different code: {', '.join(commits)}")
    if len({group.target for group in groups}) > 1:
        lines.append("the groups have different targets: their times do not compare")
    return lines


def _shared_lr(groups: Sequence[Group]) -> list[str]:
    """The learning rate that groups of different optimizers have in common: what fits one need not fit another."""
    optimizers = {(group.differs.get("optimizer.kind"), group.differs.get("optimizer.name")) for group in groups}
    optimizer = groups[0].runs[0].config.get("optimizer")
    lr = optimizer.get("lr") if isinstance(optimizer, Mapping) else None
    if len(optimizers) == 1 or lr is None or any("optimizer.lr" in group.differs for group in groups):
        return []
    return [f"the groups have different optimizers, and all of them optimizer.lr={_word(lr)}"]


def _intervals(group: Group) -> str:
    """The means of a group with their 95 % intervals, in words."""
    parts = []
    for figure, words in WITH_INTERVAL.items():
        known = group.summary(figure)
        if known is not None and known.half_interval is not None:
            low, high = known.mean - known.half_interval, known.mean + known.half_interval
            parts.append(f"{words} {known.mean:.3f} ({low:.3f} to {high:.3f}; sd {known.std:.3f})")
    return f"mean of {len(group.runs)} runs and its 95 % interval: " + ", ".join(parts)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = enumerate(value)
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _letters(index: int) -> str:
    """A to Z, then AA, AB, ..."""
    name = chr(ord("A") + index % 26)
    return name if index < 26 else _letters(index // 26 - 1) + name


def _seeds(seeds: Sequence[int]) -> str:
    return ",".join(str(seed) for seed in seeds)


def _time(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    # A run of seconds is shown with hundredths; its spread needs one digit more.
    digits = 3 if summary.mean < 10 else 1
    spread = "" if summary.std is None else f" ± {summary.std:.{digits}f} s"
    return f"{duration(summary.mean)}{spread}"


def _epochs(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    spread = "" if summary.std is None else f" ± {summary.std:.1f}"
    return f"{summary.mean:.1f}{spread}"


def _accuracy(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    spread = "" if summary.std is None else f" ± {summary.std:.2f}"
    return f"{accuracy(summary.mean)}{spread}"


def _interval(summary: Summary | None) -> str:
    if summary is None or summary.half_interval is None:
        return "-"
    half = summary.half_interval
    return f"{accuracy(max(0.0, summary.mean - half))} to {accuracy(min(100.0, summary.mean + half))}"


def _word(value: Any) -> str:
    return "null" if value is None else str(value)
