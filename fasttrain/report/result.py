"""The result of a run: ``result.json`` and the one line that is printed at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_DOWN, Decimal
from itertools import groupby
from typing import Any

from fasttrain.report.facts import RunFacts
from fasttrain.report.history import ACCURACY_DIGITS, Row, best, first_at, rate

SCHEMA = 1

# Keys that the files of older versions lack; such files are read too.
LATER_KEYS = ("seconds_with_final_validation", "test_time_augmentation", "plain_top1", "raw_top1", "raw_top5")


def build_result(
    facts: RunFacts,
    rows: Sequence[Row],
    *,
    seconds: float,
    wall_seconds: float,
    skipped_files: int,
    final_validation_seconds: float | None,
) -> dict[str, Any]:
    """The content of ``result.json``; a figure that does not apply is None.

    ``top1`` and ``top5`` are of the ``weights`` that count; ``raw_top1`` and ``raw_top5`` are None where these are
    the raw ones.

    Args:
        facts: The run.
        rows: Its epochs; none for a run that was stopped in its first.
        seconds: The clock at the end of training, without validation and checkpoint writing.
        wall_seconds: The wall time of the process then.
        skipped_files: Images that could not be read and were left out.
        final_validation_seconds: Of the validation after the last epoch; None for a run without one.
    """
    config, machine = facts.config, facts.machine
    target = config.target
    hit = first_at(rows, target.metric, target.value)
    last = rows[-1] if rows else None
    best1, best5 = best(rows, "top1"), best(rows, "top5")
    return {
        "schema": SCHEMA,
        "recipe": config.recipe,
        "command": machine.command,
        "commit": machine.commit,
        "seed": config.seed,
        "hardware": machine.hardware,
        "num_devices": machine.num_devices,
        "versions": dict(machine.versions),
        "target": {"metric": target.metric, "value": target.value},
        "reached": hit is not None,
        "epochs_to_target": hit.epoch if hit else None,
        "seconds_to_target": _seconds(hit.seconds) if hit else None,
        "wall_seconds_to_target": _seconds(hit.wall_seconds) if hit else None,
        "epochs": len(rows),
        "seconds": _seconds(seconds),
        "wall_seconds": _seconds(wall_seconds),
        "num_val": facts.num_val,
        "top1": _percent(last.top1) if last else None,
        "top5": _percent(last.top5) if last else None,
        "best_top1": _percent(best1.top1) if best1 else None,
        "best_top5": _percent(best5.top5) if best5 else None,
        "weights": facts.weights,
        "images_per_second": stage_rates(rows),
        "skipped_files": skipped_files,
        "cost_usd": cost_usd(config.report.cost_per_hour, seconds),
        "seconds_with_final_validation": (
            None if final_validation_seconds is None else _seconds(seconds + final_validation_seconds)
        ),
        "test_time_augmentation": config.trainer.test_time_augmentation,
        "plain_top1": _percent(last.plain_top1) if last else None,
        "raw_top1": _percent(last.raw_top1) if last else None,
        "raw_top5": _percent(last.raw_top5) if last else None,
    }


def stage_rates(rows: Sequence[Row]) -> dict[str, float | None]:
    """Images per second of each stage over all ranks, by the stage's row in the table (``"0"`` the first).

    Images over seconds, the first steps of a stage left out; None for a stage that had no more than these.
    """
    rates = {}
    for stage, group in groupby(rows, key=lambda row: row.stage):
        figure = rate(list(group))
        rates[str(stage)] = None if figure is None else round(figure, 1)
    return rates


def cost_usd(cost_per_hour: float | None, seconds: float | None) -> float | None:
    """US dollars for ``seconds`` by DAWNBench's rule: the clock without validation and checkpoint writing."""
    if cost_per_hour is None or seconds is None:
        return None
    return round(cost_per_hour * seconds / 3600, 4)


def time_line(result: Mapping[str, Any], rows: Sequence[Row], *, planned_epochs: int) -> str:
    """The last line that a run prints.

    Args:
        result: The content of ``result.json``.
        rows: The run's epochs.
        planned_epochs: Epochs of the plan, more than were run where the run stopped at its target.
    """
    metric, target = result["target"]["metric"], wanted(result["target"]["value"])
    place = f"on {result['hardware']}; N={result['num_val']}"
    views = result["test_time_augmentation"]
    if views not in (None, "none"):
        place += f"; test-time augmentation {views}"
    if result["reached"]:
        return (
            f"time to {target}% {metric}: {duration(result['seconds_to_target'])} "
            f"(epoch {result['epochs_to_target']} of {planned_epochs}) {place}"
        )
    top = best(rows, metric)
    if top is None:
        return f"target not reached: no epoch was finished, wanted {target}% {metric}; {place}"
    return (
        f"target not reached: best {accuracy(top.accuracy(metric) or 0.0)}% {metric} "
        f"(epoch {top.epoch} of {planned_epochs}), wanted {target}%; "
        f"{duration(result['seconds'])} {place}"
    )


def accuracy(value: float) -> str:
    """Percent with two digits, cut and not rounded: 92.998 is not 93.00."""
    return str(Decimal(repr(round(value, ACCURACY_DIGITS))).quantize(Decimal("0.01"), ROUND_DOWN))


def wanted(value: float) -> str:
    """A target's percent with two digits, or as many as it has: 93.005 is not 93.00."""
    text = f"{value:.2f}"
    return text if float(text) == value else repr(value)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, e.g. ``0:21:36``; ``1.02 s`` where they are fewer than ten seconds."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _seconds(value: float) -> float:
    return round(value, 3)


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value, ACCURACY_DIGITS)
