"""The figures of ``fasttrain bench ddp``: percentiles in the article's line, ratios, scaling. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fasttrain.bench.figures import Figure, Outcome
from fasttrain.strategy.plan import STOCK

PERCENTILES = (50, 75, 90, 95)


@dataclass(frozen=True)
class Measured:
    """All that was measured of one model.

    Attributes:
        model: Its name.
        batch: Of one rank.
        alone: Step seconds on each rank without DDP, all ranks' samples of a repeat in one list.
        arms: Likewise of each way; the first one is the baseline.
        plans: What accelerated ways ended on.
    """

    model: str
    batch: int
    alone: Sequence[Sequence[float]]
    arms: Mapping[str, Sequence[Sequence[float]]]
    plans: Mapping[str, str]

    @property
    def baseline(self) -> str:
        return next(iter(self.arms))

    def acc_ratios(self, arm: str) -> tuple[float, ...]:
        """Speed of a way over the baseline's, a figure for each repeat, in which they took turns: the article's y."""
        return _ratios(self.arms[self.baseline], self.arms[arm])

    def acc_ratio(self, arm: str) -> float:
        """The median of ``acc_ratios``."""
        return statistics.median(self.acc_ratios(arm))

    @property
    def ddp_accs(self) -> tuple[float, ...]:
        """Speed of a rank in the baseline over its speed alone: the article's x, with a device in place of a node."""
        return _ratios(self.alone, self.arms[self.baseline])

    @property
    def ddp_acc(self) -> float:
        """The median of ``ddp_accs``."""
        return statistics.median(self.ddp_accs)


def _ratios(slow: Sequence[Sequence[float]], fast: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Median step over median step, repeat by repeat."""
    return tuple(statistics.median(a) / statistics.median(b) for a, b in zip(slow, fast, strict=True))


def percentile(samples: Sequence[float], percent: int) -> float:
    """Linear between the two samples beside it, as numpy's default."""
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def article_line(samples: Sequence[float], *, batch: int, num_nodes: int, local_size: int, device: str) -> str:
    """One way's samples as the article prints them: ``   8 GPUs --    1M/8G:  p50:  0.054s     597/s  p75: ...``.

    Source: torch's benchmarks/distributed/ddp/benchmark.py, whose line it is.
    """
    figures = "".join(
        f"  p{percent}:  {percentile(samples, percent):1.3f}s  {batch / percentile(samples, percent):6.0f}/s"
        for percent in PERCENTILES
    )
    return f"{num_nodes * local_size:4d} {device}s -- {num_nodes:4d}M/{local_size}G:{figures}"


def lines_of(measured: Measured, *, num_nodes: int, local_size: int, device: str) -> list[str]:
    """What is printed of one model."""
    lines = [f"{measured.model}, batch {measured.batch}"]
    width = max(len(name) for name in measured.arms)
    for name, repeats in measured.arms.items():
        samples = [sample for repeat in repeats for sample in repeat]
        line = article_line(samples, batch=measured.batch, num_nodes=num_nodes, local_size=local_size, device=device)
        lines.append(f"{name.ljust(width)} {line}")
    for name in list(measured.arms)[1:]:
        line = f"{name}: acc_ratio={measured.acc_ratio(name):.3f} ddp_acc={measured.ddp_acc:.3f}"
        if measured.plans.get(name, "").startswith(str(STOCK)):
            line += " (stock DDP was kept: what differs from 1 is noise)"
        lines.append(line)
    lines += [f"{name}: {plan}" for name, plan in measured.plans.items()]
    return lines


def outcome_of(all_measured: Sequence[Measured]) -> Outcome:
    """Figures and the table of several models."""
    outcome = Outcome()
    for measured in all_measured:
        for name, repeats in {"alone": measured.alone, **measured.arms}.items():
            values = tuple(1000 * statistics.median(samples) for samples in repeats)
            outcome.figures.append(Figure(f"{measured.model} {measured.batch}: {name}", "ms/step", values))
        outcome.figures.append(Figure(f"{measured.model} {measured.batch}: ddp_acc", "ratio", measured.ddp_accs))
        for name in list(measured.arms)[1:]:
            ratios = measured.acc_ratios(name)
            outcome.figures.append(Figure(f"{measured.model} {measured.batch}: acc_ratio {name}", "ratio", ratios))
        for name, plan in measured.plans.items():
            outcome.verdicts[f"{measured.model} {name}"] = plan
    if len(all_measured) > 1:
        for name in list(all_measured[0].arms)[1:]:
            mean = statistics.geometric_mean([measured.acc_ratio(name) for measured in all_measured])
            worst = min(all_measured, key=lambda measured: measured.acc_ratio(name))
            outcome.verdicts[f"geometric mean of acc_ratio, {name}"] = (
                f"{mean:.3f} over {len(all_measured)} models; the least {worst.acc_ratio(name):.3f} ({worst.model})"
            )
    outcome.notes.append(
        "acc_ratio: median step of the baseline over that of the way; ddp_acc: median step of one rank without DDP "
        "over that of the baseline; each the median over repeats, in which all took turns"
    )
    return outcome
