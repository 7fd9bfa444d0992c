"""The pictures of a report as SVG text; matplotlib is imported when the first one is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fasttrain.report.clock import NOT_COUNTED
from fasttrain.report.finished_run import Run
from fasttrain.report.history import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#2563eb", "#d97706", "#15803d", "#64748b"
# Tells runs apart in a comparison; from the palette of Okabe and Ito, which colour-blind readers can read.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

# Points of a curve that a picture shows; a run can have 100,000 steps.
MAX_POINTS = 1500

WIDE, SMALL = (9.0, 3.7), (5.6, 2.9)


@dataclass(frozen=True)
class Picture:
    """One picture; ``name`` tells it apart on the page, ``caption`` says what is seen, ``svg`` draws it."""

    name: str
    caption: str
    svg: str


def draw_run(run: Run) -> list[Picture]:
    """Accuracy over time, learning rate, px, images/s, loss and where the time went.

    What there is no figure for (no epoch finished, no times recorded) is left out.
    """
    pictures = [learning_rate(run.plan), image_size(run.plan)]
    if run.rows:
        pictures = [
            accuracy(run.rows, run.result),
            *pictures,
            *([images_per_second(run.rows)] if any(row.images_per_second is not None for row in run.rows) else []),
            train_loss(run.rows),
        ]
    if run.misc.get("seconds_by_part"):
        pictures.append(time_by_part(run.misc["seconds_by_part"]))
    return pictures


def accuracy(rows: Sequence[Row], result: Mapping[str, Any]) -> Picture:
    """Validation accuracy over the clock's seconds, with the target and the moment it was reached."""
    figure, axes = _figure(WIDE)
    unit, scale = time_unit(rows[-1].seconds)
    metric, wanted = result["target"]["metric"], result["target"]["value"]
    for name, color in (("top5", ORANGE), ("top1", BLUE)):
        having = [(row.seconds / scale, value) for row in rows if (value := row.accuracy(name)) is not None]
        if having:
            axes.plot(*zip(*having, strict=True), color=color, marker="o", markersize=3.5, linewidth=1.8, label=name)
    axes.axhline(wanted, color=GREEN, linestyle="--", linewidth=1.2, label=f"target: {wanted:g} % {metric}")
    if result["reached"]:
        moment = result["seconds_to_target"] / scale
        axes.axvline(moment, color=GREEN, linestyle=":", linewidth=1.2, label=f"reached after {moment:.1f} {unit}")
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} without validation and checkpoint writing")
    axes.set_ylabel("accuracy, %")
    _legend_above(axes)
    return Picture("accuracy", "Accuracy over time", _svg(figure, "accuracy"))


def learning_rate(plan: Mapping[str, Any]) -> Picture:
    """Learning rate of every update."""
    figure, axes = _figure(SMALL)
    rates = plan["lr"]
    stride = max(1, len(rates) // MAX_POINTS)
    steps = [*range(0, len(rates), stride), len(rates) - 1]
    axes.plot(steps, [rates[step] for step in steps], color=BLUE, linewidth=1.8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    return Picture("learning-rate", "Learning rate", _svg(figure, "learning-rate"))


def image_size(plan: Mapping[str, Any]) -> Picture:
    """Side of the training and validation images in every epoch."""
    figure, axes = _figure(SMALL)
    val_px = [stage["val_px"] for stage in plan["stages"] for _ in range(stage["epochs"])]
    edges = [0.5 + epoch for epoch in range(len(plan["px"]) + 1)]
    axes.stairs(plan["px"], edges, color=BLUE, linewidth=3.2, label="training", baseline=None)
    # Dashes over the line: both are seen where they are equal.
    axes.stairs(val_px, edges, color=ORANGE, linewidth=1.6, linestyle="--", label="validation", baseline=None)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.15 * max(*plan["px"], *val_px))
    axes.set_xlabel("epoch")
    axes.set_ylabel("side, px")
    _legend_above(axes)
    _whole_numbers(axes)
    return Picture("image-size", "Image size", _svg(figure, "image-size"))


def images_per_second(rows: Sequence[Row]) -> Picture:
    """Training images per second over all ranks, an epoch each."""
    figure, axes = _figure(SMALL)
    known = [row for row in rows if row.images_per_second is not None]
    axes.bar([row.epoch for row in known], [row.images_per_second or 0.0 for row in known], color=BLUE)
    axes.set_xlim(0.4, len(rows) + 0.6)
    axes.set_xlabel("epoch")
    axes.set_ylabel("images/s")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _whole_numbers(axes)
    return Picture("images-per-second", "Images per second", _svg(figure, "images-per-second"))


def train_loss(rows: Sequence[Row]) -> Picture:
    """Mean training loss of every epoch."""
    figure, axes = _figure(SMALL)
    axes.plot([row.epoch for row in rows], [row.train_loss for row in rows], color=BLUE, marker="o", markersize=3)
    axes.set_xlim(0.4, len(rows) + 0.6)
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss")
    _whole_numbers(axes)
    return Picture("train-loss", "Training loss", _svg(figure, "train-loss"))


def time_by_part(seconds_by_part: Mapping[str, float]) -> Picture:
    """Seconds of the wall time by part of the run; what comes back in every epoch stands last."""
    total = sum(seconds_by_part.values())
    figure, axes = _figure((WIDE[0], 0.9 + 0.34 * len(seconds_by_part)))
    names = sorted(seconds_by_part, key=lambda name: name in NOT_COUNTED)
    seconds = [seconds_by_part[name] for name in names]
    colors = [BLUE if name.startswith("train") else GREY for name in names]
    bars = axes.barh(names, seconds, color=colors)
    labels = [f"{value:,.1f} s, {100 * value / total if total else 0:.0f} %" for value in seconds]
    axes.bar_label(bars, labels, padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(right=1.22 * max(seconds) or 1)
    axes.set_xlabel("seconds of wall time")
    axes.grid(axis="y", visible=False)
    return Picture("time", "Where the time went", _svg(figure, "time"))


def accuracy_of_runs(groups: Sequence[tuple[str, Sequence[Run]]], metric: str) -> Picture:
    """One metric of several runs over the clock's seconds, with their targets; a colour for each group of runs."""
    figure, axes = _figure(WIDE)
    ends = [run.rows[-1].seconds for _, runs in groups for run in runs if run.rows]
    unit, scale = time_unit(max(ends, default=1.0))
    for index, (name, runs) in enumerate(groups):
        label = name
        for run in runs:
            having = [row for row in run.rows if row.accuracy(metric) is not None]
            axes.plot(
                [row.seconds / scale for row in having],
                [row.accuracy(metric) or 0.0 for row in having],
                color=SERIES[index % len(SERIES)],
                marker="o",
                markersize=3,
                linewidth=1.4,
                label=label,
            )
            label = ""
    targets = [run.result["target"] for _, runs in groups for run in runs]
    for wanted in dict.fromkeys(target["value"] for target in targets if target["metric"] == metric):
        axes.axhline(wanted, color=GREY, linestyle="--", linewidth=1.2, label=f"target: {wanted:g} %")
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} without validation and checkpoint writing")
    axes.set_ylabel(f"{metric}, %")
    _legend_above(axes)
    return Picture(f"runs-{metric}", f"{metric} over time", _svg(figure, f"runs-{metric}"))


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a length of time reads well, and its seconds."""
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """An empty picture of ``size`` inches in the report's style."""
    # Not pyplot: it keeps figures alive and asks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#94a3b8")
    axes.tick_params(colors="#334155", labelsize=9)
    axes.grid(color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _legend_above(axes: Axes) -> None:
    """A legend over the picture's upper edge, where no curve runs."""
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.2, fontsize=9)


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _svg(figure: Figure, name: str) -> str:
    """The figure as an ``<svg>`` element that can stand in a page beside others."""
    import matplotlib

    text = io.StringIO()
    # Text as text is small and can be searched; the salt keeps ids of two pictures on a page apart.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    svg = text.getvalue()
    # An XML declaration and a document type are for files of their own, not for a part of a page.
    svg = svg[svg.index("<svg") :]
    # Groups are numbered from one in every picture.
    return re.sub(r'(<g id=")', rf"\1{name}-", svg)
