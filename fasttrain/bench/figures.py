"""Measured figures: their rows in a record, and tables of them. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Version of the document that ``--json`` writes.
SCHEMA = 1


@dataclass(frozen=True)
class Figure:
    """One quantity, measured n times.

    Attributes:
        name: What was measured, with px and batch.
        unit: E.g. ``images/s``.
        values: One a repeat, at least one.
    """

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def row(self) -> dict[str, Any]:
        """As it stands in a record."""
        return {
            "name": self.name,
            "unit": self.unit,
            "n": len(self.values),
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
        }

    def text(self) -> str:
        """Median with min and max in brackets."""
        if len(self.values) == 1:
            return number(self.median)
        return f"{number(self.median)} [{number(min(self.values))} .. {number(max(self.values))}]"


@dataclass(frozen=True)
class Cut:
    """Why a benchmark ended before its end.

    Attributes:
        why: In a few words.
        missing: What was still to be measured, at least one, with how much of it there is.
    """

    why: str
    missing: tuple[str, ...]

    def sentence(self) -> str:
        """For the notes."""
        return f"cut short, not all was measured ({self.why}); missing: {'; '.join(self.missing)}"


@dataclass
class Outcome:
    """What a benchmark gave.

    Attributes:
        figures: All of them, in order.
        tables: As they are printed.
        notes: What a reader must know to read the figures: sources, what was left out and why.
        verdicts: Conclusions, label to sentence.
        cut: What ended it early; None where all was measured.
    """

    figures: list[Figure] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    cut: Cut | None = None

    def text(self) -> str:
        """All of it for the terminal."""
        heading = "" if self.cut is None else f"CUT SHORT, not all was measured: {self.cut.why}"
        verdicts = [f"{label}: {sentence}" for label, sentence in self.verdicts.items()]
        notes = [f"note: {note}" for note in self.all_notes()]
        return "\n\n".join(part for part in (heading, *self.tables, "\n".join(verdicts), "\n".join(notes)) if part)

    def all_notes(self) -> list[str]:
        """The notes, behind the one about what is missing."""
        return [*([self.cut.sentence()] if self.cut else []), *self.notes]


def document(
    bench: str, outcome: Outcome, *, recipe: str, overrides: Sequence[str], machine: Mapping[str, Any], clock: str
) -> dict[str, Any]:
    """The benchmark as a record: plain types.

    Args:
        bench: ``data`` or ``step``.
        outcome: What it gave.
        recipe: Whose settings were measured.
        overrides: ``key=value`` words and flags of the command line.
        machine: ``command``, ``commit``, ``hardware``, ``versions``.
        clock: What was timed and how, in a sentence.

    Returns:
        With ``cut_short`` only where not all was measured.
    """
    cut = {} if outcome.cut is None else {"cut_short": {"why": outcome.cut.why, "missing": list(outcome.cut.missing)}}
    return {
        "schema": SCHEMA,
        "bench": bench,
        "recipe": recipe,
        "overrides": list(overrides),
        **machine,
        "clock": clock,
        **cut,
        "figures": [figure.row() for figure in outcome.figures],
        "verdicts": dict(outcome.verdicts),
        "notes": outcome.all_notes(),
    }


def lacking(what: str, have: int, wanted: int) -> list[str]:
    """An entry for the list of what is missing; none where all is there."""
    return [] if have >= wanted else [f"{what} ({have} of {wanted})"]


def number(value: float) -> str:
    """Four digits where that is all that means something; thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their headers; the first one to the left, figures to the right."""
    cells = [list(headers), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([title, *(f"  {line}" for line in lines)])
