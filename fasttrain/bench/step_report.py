"""Figures and tables of ``fasttrain bench step``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fasttrain.bench.arms import Arm, Shape
from fasttrain.bench.figures import Figure, Outcome, number, table
from fasttrain.bench.roofline import CHIPS, COUNTING, count_work, least_seconds
from fasttrain.bench.stage_times import stage_times
from fasttrain.bench.training import Measured
from fasttrain.model.build import build_model
from fasttrain.report.result import cost_usd, duration
from fasttrain.stages import accumulation, build_plan
from fasttrain.strategy.check import choose_accelerator
from fasttrain.strategy.world import World

MIB = 1 << 20
# Columns of medians, where they were measured.
MEDIANS = {
    "roofline": "of roofline",
    "memory": "peak MiB",
    "launches": "launches",
    "bare": "bare loop images/s",
    "ratio": "over bare loop",
}


@dataclass
class ShapeResult:
    """What the rounds gave for one shape of one arm.

    Attributes:
        rates: Images/s over all ranks.
        bare_rates: Of the same step in a bare loop.
        peak_bytes: Most memory that tensors took on the first device.
        launches: Calls that start work on the device, one step.
    """

    rates: list[float] = field(default_factory=list)
    bare_rates: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    launches: list[float] = field(default_factory=list)

    def add(self, epoch: Measured) -> None:
        """Take what an epoch gave; nothing of one that only fills caches."""
        if epoch.rate is not None:
            self.rates.append(epoch.rate)
        if epoch.peak_bytes is not None and not (epoch.fills or epoch.profiled):
            self.peak_bytes.append(epoch.peak_bytes)
        if epoch.launches is not None:
            self.launches.append(epoch.launches)


# By label of the arm and shape.
Results = Mapping[tuple[str, Shape], ShapeResult]


def report_arm(outcome: Outcome, arm: Arm, results: Results, world: World, *, num_classes: int) -> None:
    """Add the figures and the table of one arm; shapes that have no rate yet are left out."""
    measured = [shape for shape in arm.shapes if results[arm.label, shape].rates]
    if not measured:
        return
    precision = arm.run.config.trainer.precision
    on_gpu = choose_accelerator(arm.run.config, world) == "gpu"
    least = _least_seconds(outcome, arm, measured, world, num_classes=num_classes, on_gpu=on_gpu)
    rows = []
    for shape in measured:
        result, name = results[arm.label, shape], shape_name(shape, arm.label)
        rate = Figure(f"step, {name}", "images/s", tuple(result.rates))
        ms = Figure(f"step, {name}", "ms", tuple(1e3 * shape.batch_size / value for value in result.rates))
        figures = {"rate": rate, "ms": ms}
        if shape in least:
            fractions = tuple(1e3 * least[shape] / value for value in ms.values)
            figures["roofline"] = Figure(f"roofline, {name}", "fraction", fractions)
        if result.peak_bytes:
            peaks = tuple(peak / MIB for peak in result.peak_bytes)
            figures["memory"] = Figure(f"peak memory of tensors, {name}", "MiB", peaks)
        if result.launches:
            figures["launches"] = Figure(f"launches a step, {name}", "launches", tuple(result.launches))
        if result.bare_rates:
            bare = figures["bare"] = Figure(f"bare loop, {name}", "images/s", tuple(result.bare_rates))
            ratio = rate.median / bare.median
            figures["ratio"] = Figure(f"Lightning's loop over the bare loop, {name}", "ratio of medians", (ratio,))
        outcome.figures += figures.values()
        micro = micro_batches(arm, shape, world)
        batch = f"{shape.batch_size} ({micro} x {shape.batch_size // world.size // micro})"
        shown = [figures[key].text() if key in figures else "" for key in ("rate", "ms")]
        medians = [number(figures[key].median) if key in figures else "" for key in MEDIANS]
        rows.append([f"{shape.px} px", batch, *shown, number(rate.median / world.size), *medians])
    headers = ["px", "batch (a device's parts)", "images/s", "ms a step", "images/s a device", *MEDIANS.values()]
    kept = [column for column in range(len(headers)) if any(row[column] for row in rows)]
    title = f"training step, {arm.run.config.model.name}, {arm.label or precision}"
    outcome.tables.append(table(title, [headers[c] for c in kept], [[row[c] for c in kept] for row in rows]))


def report_recipe(outcome: Outcome, arm: Arm, results: Results, world: World) -> None:
    """Add the time and cost of the whole recipe at the measured rates: projected, not trained."""
    config, label = arm.run.config, f", {arm.label}" if arm.label else ""
    if unknown := [shape_name(shape) for shape in arm.shapes if not results[arm.label, shape].rates]:
        outcome.notes.append(f"no projected time of the recipe{label}: no rate at {'; '.join(unknown)}")
        return
    if config.data.num_train is None:
        outcome.notes.append("no projected time of the recipe: data.num_train=null")
        return
    plan = build_plan(
        config.stages,
        num_train=config.data.num_train,
        world_size=world.size,
        device_batch_size=config.trainer.device_batch_size,
        steps_per_stage=None,
    )
    rates = {(shape.px, shape.batch_size): statistics.median(results[arm.label, shape].rates) for shape in arm.shapes}
    times = stage_times(plan, rates)
    seconds = sum(time.seconds for time in times)
    rows = [
        [f"{t.stage}", f"{t.px}", f"{t.batch_size}", f"{t.epochs}", f"{t.steps:,}", number(t.rate), duration(t.seconds)]
        for t in times
    ]
    rows.append(["all", "", "", str(len(plan.epochs)), f"{plan.total_steps:,}", "", duration(seconds)])
    title = f"projected from these rates, not trained: {config.recipe}, training alone{label}"
    outcome.tables.append(table(title, ["stage", "px", "batch", "epochs", "steps", "images/s", "time"], rows))
    outcome.figures.append(Figure(f"projected training time of {config.recipe}{label}", "s", (seconds,)))
    cost = cost_usd(config.report.cost_per_hour, seconds)
    if cost is not None:
        outcome.figures.append(Figure(f"projected training cost of {config.recipe}{label}", "USD", (cost,)))
        outcome.tables.append(f"projected cost at {config.report.cost_per_hour:g} USD an hour: {cost:.2f} USD")


def report_files_over_random(outcome: Outcome, arms: Sequence[Arm], results: Results) -> None:
    """Add, where both were measured, what training on files keeps of the rate on pixels that cost nothing."""
    twins = {arm.label.removesuffix("random"): arm for arm in arms if arm.data == "random"}
    rows = []
    for arm in arms:
        twin = twins.get(arm.label.removesuffix("files")) if arm.data == "files" else None
        if twin is None:
            continue
        for shape in arm.shapes:
            rates = [results[label, shape].rates for label in (arm.label, twin.label)]
            if not all(rates):
                continue
            medians = [statistics.median(values) for values in rates]
            name = f"files over random, {shape.px} px, batch {shape.batch_size}"
            settings = arm.label.removesuffix("files").removesuffix(", ")
            name += f", {settings}" if settings else ""
            figure = Figure(name, "ratio of medians", (medians[0] / medians[1],))
            outcome.figures.append(figure)
            rows.append([figure.name, figure.text()])
    if rows:
        outcome.tables.append(table("training on files over training on random pixels", ["shape", "ratio"], rows))


def micro_batches(arm: Arm, shape: Shape, world: World) -> int:
    """Parts in which one device takes its images of a step."""
    return accumulation(shape.batch_size // world.size, arm.run.config.trainer.device_batch_size)


def shape_name(shape: Shape, label: str = "") -> str:
    """A shape, and the label of an arm behind it, as figures name them."""
    return f"{shape.px} px, batch {shape.batch_size}" + (f", {label}" if label else "")


def _least_seconds(
    outcome: Outcome, arm: Arm, shapes: Sequence[Shape], world: World, *, num_classes: int, on_gpu: bool
) -> dict[Shape, float]:
    """The roofline's time of each shape on this device; empty where the device's ceilings are not known."""
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    config, chip = arm.run.config, CHIPS.get(name)
    if chip is None:
        _note(outcome, f"no roofline: unknown chip ({name})")
        return {}
    network = build_model(config.model, num_classes)
    found = {}
    for shape in shapes:
        parts = micro_batches(arm, shape, world)
        work = count_work(
            network,
            px=shape.px,
            micro_batch=shape.batch_size // world.size // parts,
            accumulate=parts,
            precision=config.trainer.precision,
        )
        seconds = least_seconds(work, chip, config.trainer.precision)
        if seconds is None:
            _note(outcome, f"no roofline in {config.trainer.precision}: not measured on {name}")
            return {}
        found[shape] = seconds
    _note(outcome, COUNTING)
    _note(outcome, chip.source)
    return found


def _note(outcome: Outcome, note: str) -> None:
    if note not in outcome.notes:
        outcome.notes.append(note)
