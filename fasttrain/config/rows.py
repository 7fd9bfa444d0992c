"""Rows of the stage table on the command line, ``stages.1.px=96``: one that is not there, and which was meant."""

from __future__ import annotations

import re

from fasttrain.config.describe import COMMAND_LINE, example, paste
from fasttrain.config.keys import find, shown
from fasttrain.config.unknown import meant_in_row
from fasttrain.errors import Problem


def wrong_row(key: str, given: str, num_rows: int) -> Problem | None:
    """What is wrong with the row that a key names; None for a row of the table and for a key without one.

    Args:
        key: Dotted, below ``stages``.
        given: Its value, as text.
        num_rows: Rows of the run's table, 1 or more.
    """
    index, _, name = key.removeprefix("stages.").partition(".")
    last = num_rows - 1
    rows = f"stages[0] to stages[{last}]" if last else "stages[0] only"
    if not re.fullmatch(r"[-+]?\d+", index):
        if not name:
            return None
        row, why = 0, f"rows of the stage table have numbers, {rows}"
    elif (number := int(index)) > last:
        row, why = last, f"the last row of the stage table is stages[{last}]"
    elif number < 0:
        # As Python counts from the end, where there are so many rows.
        row, why = max(0, num_rows + number), f"rows of the stage table are counted from the first, {rows}"
    elif index != str(number):
        row, why = number, f"rows of the stage table are written {rows}"
    else:
        return None
    meant = meant_in_row(name) if name else ""
    if meant is None:
        return Problem(f"{shown(key)}={given}: {why}, and a stage has no {name}", "leave it out", COMMAND_LINE)
    place = f"stages.{row}.{meant}".rstrip(".")
    setting = find(place, {})
    assert setting is not None
    return Problem(f"{shown(key)}={given}: {why}", paste(place, example(setting, given)), COMMAND_LINE)
