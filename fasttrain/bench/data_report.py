"""Figures, tables and verdicts of ``fasttrain bench data``, whole or of what is measured so far."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from fasttrain.bench.bottleneck import find_bottleneck
from fasttrain.bench.data_runs import DataRun
from fasttrain.bench.figures import Figure, Outcome, table
from fasttrain.bench.measure import Drained

TOGETHER = "train_epoch"
DECODING, BARE = "DALI path of fasttrain", "bare DALI"

# What the path as a whole is made of, by its back end, where no cache stands in between.
USED = {"dali": ("headers", "backend"), "torchvision": ("read", "backend")}

HEADERS = ("part", "unit", "n", "median [min .. max]")


@dataclass
class PxResult:
    """What was drained at one px.

    Attributes:
        px: Side of the images, pixels.
        ours: Name of what is compared with bare DALI.
        drained: Measurements by name of the part, none at first.
    """

    px: int
    ours: str
    drained: dict[str, list[Drained]]

    @property
    def repeats(self) -> int:
        """Measurements that every part has."""
        return min(len(values) for values in self.drained.values())

    def rates(self) -> dict[str, list[float]]:
        """Images/s by name, of the parts that have any."""
        return {name: [one.rate for one in values] for name, values in self.drained.items() if values}


@dataclass
class PathResult:
    """What was measured of one run's data path.

    Attributes:
        run: Whose path.
        backend: Name of its back end; empty before it is opened.
        fill: Px and images/s of the pass that filled its cache.
        sides: What was drained, px by px.
        notes: What was left out and why.
    """

    run: DataRun
    backend: str = ""
    fill: tuple[int, float] | None = None
    sides: list[PxResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def report_path(outcome: Outcome, path: PathResult, needs: Mapping[int, float], batch: int) -> None:
    """Add all of one run's path.

    Args:
        outcome: Takes figures, tables, verdicts and notes.
        path: What was measured.
        needs: Images/s of the training step by px.
        batch: Images at once.
    """
    if path.fill is not None:
        px, rate = path.fill
        name = _name("pass that fills the cache, without training", px, path.run)
        outcome.figures.append(Figure(name, "images/s", (rate,)))
    for result in path.sides:
        if result.rates():
            _report_px(outcome, path, result, needs.get(result.px), batch)
    outcome.notes += path.notes


def report_needs(outcome: Outcome, needs: Mapping[int, float]) -> None:
    """Add the step's rates at px of which nothing else is known: the benchmark was cut short."""
    figures = [Figure(f"need of the training step, {px} px", "images/s", (need,)) for px, need in needs.items()]
    if figures:
        outcome.figures += figures
        outcome.tables.append(table("training step", HEADERS, [_row(figure) for figure in figures]))


def _report_px(outcome: Outcome, path: PathResult, result: PxResult, need: float | None, batch: int) -> None:
    """Figures and table of one px, and the verdict once every part has been measured."""
    px, run, rates = result.px, path.run, result.rates()
    figures = [Figure(_name(name, px, run), "images/s", tuple(values)) for name, values in rates.items()]
    figures += [
        Figure(f"host time of {_name(name, px, run)}", "us/image", tuple(one.host_us for one in result.drained[name]))
        for name in rates
    ]
    if BARE in rates:
        ratios = tuple(a / b for a, b in zip(rates[result.ours], rates[BARE], strict=False))
        figures.append(Figure(_name("DALI path of fasttrain over bare DALI", px, run), "ratio", ratios))
    if need is not None:
        figures.append(Figure(_name("need of the training step", px, run), "images/s", (need,)))
    outcome.figures += figures
    title = f"data path, {px} px, batch {batch}, {path.backend}{_comma(run.label)}"
    outcome.tables.append(table(title, HEADERS, [_row(figure) for figure in figures]))
    if not result.repeats:
        return
    medians = {name: statistics.median(values) for name, values in rates.items()}
    used = () if run.caches else USED.get(path.backend, ())
    alone = {name: medians[name] for name in used if name in medians}
    verdict = find_bottleneck(alone, medians[TOGETHER], need)
    outcome.verdicts[f"{px} px{_comma(run.label)}"] = verdict.sentence()


def _row(figure: Figure) -> list[str]:
    return [figure.name, figure.unit, str(len(figure.values)), figure.text()]


def _name(what: str, px: int, run: DataRun) -> str:
    return f"{what}, {px} px{_comma(run.label)}"


def _comma(label: str) -> str:
    return f", {label}" if label else ""
