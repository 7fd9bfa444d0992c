"""Fields of the schema: each has in its metadata what its type cannot say, bounds, choices, unit and an example."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def number(
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    unit: str = "",
    example: str = "",
) -> Any:
    """A numeric field with its bounds (inclusive ``ge``/``le``, exclusive ``gt``/``lt``) and unit.

    ``example`` is a value that is valid, to be shown in the fix of an error.
    """
    return field(metadata={"ge": ge, "gt": gt, "le": le, "lt": lt, "unit": unit, "example": example})


def choice(*values: str) -> Any:
    """A text field that takes one of ``values``."""
    return field(metadata={"choices": values})


def text(example: str = "") -> Any:
    """A free text field; ``example`` is shown in the fix of an error."""
    return field(metadata={"example": example})


def path(example: str = "") -> Any:
    """A file or folder; a relative one counts from the directory that the run is started in."""
    return field(metadata={"example": example, "path": True})


def numbers(
    *,
    length: int | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    unit: str = "",
    example: str = "",
) -> Any:
    """A list of numbers, each within the bounds; ``length`` entries where that is given."""
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    return field(metadata={**bounds, "length": length, "unit": unit, "example": example})


def part() -> Any:
    """A field that holds settings of its own."""
    return field()


def option(*values: str) -> Any:
    """The name of the stage's option, set by choosing it (``optimizer=sgd``), not by hand."""
    return field(metadata={"choices": values, "set_by_option": True})
