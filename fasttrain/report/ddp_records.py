"""``fasttrain report ddp.json ...``: records of ``fasttrain bench ddp`` as one table and the article's scatter plot.

A dot is a model on a number of ranks: across how well stock DDP scales, upwards what accelerated DDP gains over it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fasttrain.errors import DataError, Problem
from fasttrain.regular_file import require_regular_file
from fasttrain.report.files import require_writable, write_text
from fasttrain.report.page import document, figures_of, numbers_table
from fasttrain.report.pictures import GREY, SERIES, WIDE, Picture, _figure, _legend_above, _svg

HEADER = ("model, batch", "hardware", "way", "ddp_acc", "acc_ratio", "least", "most", "n")

# In the names of a record's figures.
SCALING, RATIO = "ddp_acc", "acc_ratio "


@dataclass(frozen=True)
class Dot:
    """One model in one accelerated way.

    Attributes:
        model: Its name and the batch of a rank.
        hardware: On which it was measured.
        way: E.g. ``accelerated_ddp+capture``.
        ddp_acc: Speed of a rank in the baseline over its speed alone.
        acc_ratio: Speed over the baseline's: median, least and most of ``n`` repeats.
        n: Repeats.
    """

    model: str
    hardware: str
    way: str
    ddp_acc: float
    acc_ratio: tuple[float, float, float]
    n: int

    def cells(self) -> list[str]:
        """Its row."""
        ratios = [f"{ratio:.3f}" for ratio in self.acc_ratio]
        return [self.model, self.hardware, self.way, f"{self.ddp_acc:.3f}", *ratios, str(self.n)]


def report_ddp(paths: Sequence[Path], *, out: Path | None) -> str:
    """The table of several records; with ``out`` a page with the picture too.

    Returns:
        What to print.

    Raises:
        DataError: A file is no such record.
        MachineError: The page cannot be written.
    """
    if out is not None:
        require_writable(out, "--out")
    dots = [dot for path in paths for dot in read_dots(path)]
    rows = [HEADER, *(dot.cells() for dot in dots)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if out is not None:
        write_text(out, page(dots))
        lines.append(f"page: {out}")
    return "\n".join(lines)


def read_dots(path: Path) -> list[Dot]:
    """The dots of one record.

    Raises:
        DataError: The file is no record of ``fasttrain bench ddp``.
    """
    try:
        require_regular_file(path)
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content["bench"] != "ddp":
            raise ValueError(f"a record of bench {content['bench']}")
        figures = {str(figure["name"]): figure for figure in content["figures"]}
        dots = []
        for name, figure in figures.items():
            model, _, what = name.partition(": ")
            if what.startswith(RATIO):
                scaling = float(figures[f"{model}: {SCALING}"]["median"])
                ratio = (float(figure["median"]), float(figure["min"]), float(figure["max"]))
                way = what.removeprefix(RATIO)
                dots.append(Dot(model, str(content["hardware"]), way, scaling, ratio, int(figure["n"])))
        if not dots:
            raise ValueError("no acc_ratio in it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            Problem(f"{path} is no record of `fasttrain bench ddp`: {error}", "fasttrain bench ddp ... --json FILE")
        ) from error
    return dots


def page(dots: Sequence[Dot]) -> str:
    """The page as HTML that opens without a network."""
    title = "Accelerated DDP over stock DDP"
    body = [
        f"<header><p>fasttrain</p><h1>{escape(title)}</h1></header>",
        figures_of([scatter(dots)]),
        numbers_table(HEADER, [dot.cells() for dot in dots], text_columns=HEADER[:3]),
        "<p>acc_ratio: speed over the baseline's; ddp_acc: speed of a rank in the baseline over its speed without DDP."
        "</p>",
    ]
    return document(title, body, wide=True)


def scatter(dots: Sequence[Dot]) -> Picture:
    """A dot a model and way; a colour for each way on each hardware."""
    figure, axes = _figure(WIDE)
    kinds = dict.fromkeys((dot.way, dot.hardware) for dot in dots)
    for index, (way, hardware) in enumerate(kinds):
        chosen = [dot for dot in dots if (dot.way, dot.hardware) == (way, hardware)]
        axes.scatter(
            [dot.ddp_acc for dot in chosen],
            [dot.acc_ratio[0] for dot in chosen],
            color=SERIES[index % len(SERIES)],
            s=28,
            label=f"{way}, {hardware}",
        )
        for dot in chosen:
            axes.annotate(
                dot.model, (dot.ddp_acc, dot.acc_ratio[0]), fontsize=7, xytext=(4, 3), textcoords="offset points"
            )
    axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1.2)
    axes.set_xlabel("ddp_acc: how well the baseline scales")
    axes.set_ylabel("acc_ratio")
    _legend_above(axes)
    return Picture("acc-ratio", "Gain over the baseline by how well it scales", _svg(figure, "acc-ratio"))
