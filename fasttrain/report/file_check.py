"""Whether the files of a finished run hold what a run writes: types and ranges, for files that were edited."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrain.errors import DataError, Problem

# Characters of a wrong value that a message shows.
MAX_SHOWN = 60
METRICS = ["top1", "top5"]


@dataclass(frozen=True)
class Kind:
    """What a value is expected to be, in words, and whether one is it."""

    words: str
    fits: Callable[[Any], bool]


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether a value is a number from ``low`` to ``high``; no NaN and no truth value is."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _or_null(kind: Kind) -> Kind:
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.fits(value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and is_number(value, 0, LARGEST)


# Far above every count, second and dollar of a run, and below what breaks the arithmetic of a report.
LARGEST = 1e15

TEXT = Kind("a text", lambda value: isinstance(value, str))
COUNT = Kind("a whole number of at least 0", _is_count)
NUMBER = Kind("a number of at least 0", lambda value: is_number(value, 0, LARGEST))
PERCENT = Kind("a number from 0 to 100", lambda value: is_number(value, 0, 100))
YES_OR_NO = Kind("true or false", lambda value: isinstance(value, bool))
TABLE = Kind("an object", lambda value: isinstance(value, dict))
TARGET = Kind(
    'an object as {"metric": "top1", "value": 93}, metric top1 or top5, value a percent',
    lambda value: _is_target(value),
)
RATES = Kind(
    "an object of numbers or null, by stage",
    lambda value: isinstance(value, dict) and all(_or_null(NUMBER).fits(rate) for rate in value.values()),
)
NUMBERS = Kind("a list of numbers", lambda value: _is_list_of(value, NUMBER))
COUNTS = Kind("a list of whole numbers", lambda value: _is_list_of(value, COUNT))

OF_RESULT = {
    **dict.fromkeys(("recipe", "command", "hardware", "weights"), TEXT),
    **dict.fromkeys(("commit", "test_time_augmentation"), _or_null(TEXT)),
    **dict.fromkeys(("seed", "num_devices", "epochs", "num_val", "skipped_files"), COUNT),
    **dict.fromkeys(("seconds", "wall_seconds"), NUMBER),
    **dict.fromkeys(("seconds_to_target", "wall_seconds_to_target", "cost_usd"), _or_null(NUMBER)),
    "seconds_with_final_validation": _or_null(NUMBER),
    "epochs_to_target": _or_null(COUNT),
    **dict.fromkeys(("top1", "top5", "best_top1", "best_top5"), _or_null(PERCENT)),
    **dict.fromkeys(("plain_top1", "raw_top1", "raw_top5"), _or_null(PERCENT)),
    "versions": TABLE,
    "target": TARGET,
    "reached": YES_OR_NO,
    "images_per_second": RATES,
}
# Null unless the target was reached.
OF_THE_TARGET = {"epochs_to_target": COUNT, "seconds_to_target": NUMBER, "wall_seconds_to_target": NUMBER}

OF_STAGE = {
    **dict.fromkeys(("epochs", "px", "batch_size", "accumulate", "val_px", "steps_per_epoch"), COUNT),
    "min_area": NUMBER,
}
OF_PLAN = {
    "stages": Kind("a list of objects, a stage each", lambda value: _is_list_of(value, TABLE)),
    **dict.fromkeys(("total_steps", "total_epochs", "num_train", "num_val", "num_classes"), COUNT),
    "lr": NUMBERS,
    "px": COUNTS,
}
OF_MISC = {
    "seconds_by_part": Kind(
        "an object of numbers, by part of the run",
        lambda value: isinstance(value, dict) and all(NUMBER.fits(seconds) for seconds in value.values()),
    )
}


def check_result(path: Path, result: Mapping[str, Any]) -> None:
    """See that ``result.json`` holds what ``build_result`` writes.

    Raises:
        DataError: Keys are missing or of another kind; names the file and all of them.
    """
    _check(path, result, OF_RESULT)
    if result["reached"]:
        _check(path, result, OF_THE_TARGET, where=" of a run that reached its target")


def check_plan(path: Path, plan: Mapping[str, Any]) -> None:
    """See that ``plan.json`` holds what ``plan_document`` writes, with as many epochs in all its parts.

    Raises:
        DataError: Keys are missing or of another kind, or do not fit together.
    """
    _check(path, plan, OF_PLAN)
    for row, stage in enumerate(plan["stages"]):
        _check(path, stage, OF_STAGE, where=f" of stages[{row}]")
    epochs = sum(stage["epochs"] for stage in plan["stages"])
    if epochs != len(plan["px"]):
        raise DataError(_wrong(path, f"px has {len(plan['px'])} epochs, but the stages have {epochs}"))


def check_misc(path: Path, misc: object) -> None:
    """See that ``misc`` of ``dawnbench.json`` can be shown.

    Raises:
        DataError: It is no object, or its times are no numbers.
    """
    _check(path, {"misc": misc}, {"misc": TABLE})
    assert isinstance(misc, dict)
    _check(path, misc, {key: kind for key, kind in OF_MISC.items() if key in misc}, where=" of misc")


def check_report_settings(path: Path, config: Mapping[str, Any]) -> None:
    """See that the settings of the report, in a ``config.yaml``, can be used.

    Raises:
        DataError: ``report`` is no table, or its price no number.
    """
    report = config.get("report", {})
    _check(path, {"report": report}, {"report": Kind("a table of settings", lambda value: isinstance(value, dict))})
    _check(path, {"cost_per_hour": None, **report}, {"cost_per_hour": _or_null(NUMBER)}, where=" of report")


def _check(path: Path, document: Mapping[str, Any], kinds: Mapping[str, Kind], *, where: str = "") -> None:
    missing = [key for key in kinds if key not in document]
    if missing:
        raise DataError(_wrong(path, f"{', '.join(missing)}{where} missing"))
    problems = [
        _wrong(path, f"{key}={_shown(document[key])}{where}: expected {kind.words}")
        for key, kind in kinds.items()
        if not kind.fits(document[key])
    ]
    if problems:
        raise DataError(problems)


def _is_target(value: Any) -> bool:
    return isinstance(value, dict) and value.get("metric") in METRICS and PERCENT.fits(value.get("value"))


def _is_list_of(value: Any, kind: Kind) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(kind.fits(item) for item in value)


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _wrong(path: Path, what: str) -> Problem:
    return Problem(f"{path}: {what}", "put back the file that the run wrote, or leave this run out")
