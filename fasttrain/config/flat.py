"""Nested settings by their dotted keys, and what differs between two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings that say how a process runs, not what the run is.
OF_THE_PROCESS = ("run_dir", "resume", "resume_force", "dry_run", "debug")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``; lists and empty tables are values."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def config_diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings that differ between two runs' values, sorted by key.

    Args:
        old: ``ComposedRun.values`` of one run.
        new: Those of the other.

    Returns:
        ``(key, old, new)`` each, None for a side that lacks the key; rows of stages as ``stages[1].px``.
    """
    before, after = _with_rows(old), _with_rows(new)
    keys = sorted(before.keys() | after.keys())
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _with_rows(values: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten(values)
    rows = flat.pop("stages", None) or []
    for index, row in enumerate(rows):
        flat.update(flatten(row, f"stages[{index}]."))
    return flat
