"""Settings that an older version wrote: what has come since takes the value that its run had without knowing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fasttrain.config.files import OptionFiles
from fasttrain.config.layers import read_chain

# Where the default of a later setting is not what was done before it came.
DONE_BEFORE: dict[str, dict[str, Any]] = {"data": {"num_shards": 1}}


def filled_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run, those that are missing with their options' defaults; what is there stays as it is.

    Args:
        values: Plain nested settings, as ``ComposedRun.values``.
    """
    files = OptionFiles()
    filled = dict(values)
    for group in files.groups:
        given = values.get(group)
        if not isinstance(given, Mapping):
            continue
        option = str(given.get("kind", "default"))
        if files.get(group, option) is None:
            continue
        defaults: dict[str, Any] = {}
        for layer in read_chain(group, option, files):
            defaults = _over(defaults, layer.values)
        defaults = _over(defaults, DONE_BEFORE.get(group, {}))
        filled[group] = _over(defaults, given)
    return filled


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = _over(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged
