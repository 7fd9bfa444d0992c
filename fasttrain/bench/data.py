"""``fasttrain bench data``: the data path part by part and as a whole, beside what the training step needs."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from fasttrain.bench import data_parts, stage_change
from fasttrain.bench.arguments import DataFlags
from fasttrain.bench.bottleneck import find_bottleneck
from fasttrain.bench.data_parts import Parts
from fasttrain.bench.data_runs import DataRun, step_arm
from fasttrain.bench.figures import Figure, Outcome, table
from fasttrain.bench.first_pass import measure_first_pass
from fasttrain.bench.measure import Drained, drain, now
from fasttrain.bench.step import measure_arm
from fasttrain.bench.training import rates, reset_device
from fasttrain.data.backend_choice import start_backend
from fasttrain.data.path import DataPath, build_data_path
from fasttrain.data.scan import Scan
from fasttrain.errors import ConfigError, Problem
from fasttrain.run import planning
from fasttrain.stages import Plan
from fasttrain.strategy.check import choose_accelerator
from fasttrain.strategy.world import World

CLOCK = (
    "images over seconds of batches drained from endless iterators, the device synchronised at both ends; repeats of "
    "all parts take turns; files come from the page cache once they have been read"
)

# Steps of each measurement of the training step.
STEP_STEPS = 25

TOGETHER = "train_epoch"
DECODING, BARE = "DALI path of fasttrain", "bare DALI"

# What the path as a whole is made of, by its back end, where no cache stands in between.
USED = {"dali": ("headers", "backend"), "torchvision": ("read", "backend")}


@dataclass(frozen=True)
class Bench:
    """What all measurements share.

    Attributes:
        flags: Of the command line.
        run: The first of the compared runs.
        images: Of all runs.
        plan: An endless one: a stage for each px.
        device: Where batches go.
    """

    flags: DataFlags
    run: DataRun
    images: Scan
    plan: Plan
    device: torch.device


def bench_data(flags: DataFlags, runs: Sequence[DataRun], world: World) -> Outcome:
    """Measure what the flags ask for.

    Raises:
        ConfigError: A batch larger than the set.
    """
    config = runs[0].run.config
    images = planning.scan_images(config, world)
    if images.num_train < flags.batch:
        fix = f"--batch {images.num_train}"
        raise ConfigError(Problem(f"--batch {flags.batch}: the set has {images.num_train} training images", fix))
    plan, _ = planning.lay_out(config, images, world)
    on_gpu = choose_accelerator(config, world) == "gpu"
    bench = Bench(flags, runs[0], images, plan, torch.device("cuda", 0) if on_gpu else torch.device("cpu"))
    if on_gpu:
        torch.cuda.set_device(bench.device)
    outcome = Outcome()
    needs = step_needs(bench, world)
    _measure_rates(outcome, bench, runs, needs)
    if flags.stage_changes:
        for run in runs:
            with opened_path(bench, run) as path:
                if run.caches:
                    fill(bench, path)
                stage_change.measure(outcome, path, plan, flags, run.label, needs, bench.device)
    if flags.first_pass:
        for run in runs:
            measure_first_pass(outcome, run, flags, world, bench.device)
    return outcome


def step_needs(bench: Bench, world: World) -> dict[int, float]:
    """Images/s of the training step by px; empty where they are not wanted."""
    flags, sides = bench.flags, [stage.px for stage in bench.run.run.config.stages]
    if flags.need == "none":
        return {}
    if not isinstance(flags.need, str):
        return dict(zip(sides, flags.need, strict=True))
    arm = step_arm(flags, bench.run.run.config)
    measured = measure_arm(arm, world, repeats=flags.repeats, steps=STEP_STEPS, num_classes=bench.images.num_classes)
    reset_device()
    return {px: statistics.median(rates(measured, px, flags.batch)) for px in sides}


@contextlib.contextmanager
def opened_path(bench: Bench, run: DataRun) -> Iterator[DataPath]:
    """The data path of a run, closed in the end."""
    torch.manual_seed(run.run.config.seed)
    path = build_data_path(run.run.config, bench.images, bench.plan, device=bench.device, rank=0, world_size=1)
    try:
        yield path
    finally:
        path.close()
        reset_device()


def _measure_rates(outcome: Outcome, bench: Bench, runs: Sequence[DataRun], needs: Mapping[int, float]) -> None:
    """Every run's path as a whole, px by px, and with the first run all parts alone."""
    for run in runs:
        parts_too = run is runs[0]
        with opened_path(bench, run) as path, opened_parts(bench, wanted=parts_too) as parts:
            if run.caches:
                name = _name("pass that fills the cache, without training", bench.plan.epochs[0].px, run)
                outcome.figures.append(Figure(name, "images/s", (fill(bench, path),)))
            for px in dict.fromkeys(epoch.px for epoch in bench.plan.epochs):
                _one_px(outcome, bench, run, path, parts, px=px, need=needs.get(px))
            if parts is not None:
                outcome.notes += parts.left_out


@contextlib.contextmanager
def opened_parts(bench: Bench, *, wanted: bool) -> Iterator[Parts | None]:
    """The parts of the path and the back end that some of them use, closed in the end."""
    if not wanted or not bench.flags.parts:
        yield None
        return
    backend = start_backend(bench.run.run.config, bench.images, bench.plan, device=bench.device, rank=0)
    try:
        yield Parts(bench.run.run.config, bench.images.train, backend, bench.device, bench.flags.parts)
    finally:
        backend.close()


def fill(bench: Bench, path: DataPath) -> float:
    """Images/s of the pass that fills a cache, without training."""
    epoch = bench.plan.epochs[0]
    started = now(bench.device)
    for _ in path.train_epoch(epoch):
        pass
    return epoch.images / (now(bench.device) - started)


def _one_px(
    outcome: Outcome,
    bench: Bench,
    run: DataRun,
    path: DataPath,
    parts: Parts | None,
    *,
    px: int,
    need: float | None,
) -> None:
    """Figures, table and verdict of one px."""
    flags, epochs = bench.flags, [epoch for epoch in bench.plan.epochs if epoch.px == px]
    streams = {} if parts is None else parts.streams(epochs[0], flags.batch)
    streams[TOGETHER] = data_parts.through_path(path, epochs)
    # The path as it decodes, whatever the run caches.
    ours = DECODING if run.caches else TOGETHER
    if parts is not None and parts.compares_dali:
        if run.caches:
            streams[ours] = parts.through_backend(epochs[0], flags.batch)
        like = parts.backend if run.caches else path.backend
        streams[BARE] = parts.bare_dali(epochs[0], flags.batch, like)
    drained: dict[str, list[Drained]] = {name: [] for name in streams}
    for _ in range(flags.repeats):
        for name, batches in streams.items():
            drained[name].append(drain(batches, flags.seconds, bench.device))
    for batches in streams.values():
        batches.close()
    measured = {name: [one.rate for one in values] for name, values in drained.items()}
    figures = [Figure(_name(name, px, run), "images/s", tuple(values)) for name, values in measured.items()]
    figures += [
        Figure(f"host time of {_name(name, px, run)}", "us/image", tuple(one.host_us for one in values))
        for name, values in drained.items()
    ]
    if BARE in measured:
        ratios = tuple(a / b for a, b in zip(measured[ours], measured[BARE], strict=True))
        figures.append(Figure(_name("DALI path of fasttrain over bare DALI", px, run), "ratio", ratios))
    if need is not None:
        figures.append(Figure(_name("need of the training step", px, run), "images/s", (need,)))
    outcome.figures += figures
    rows = [[figure.name, figure.unit, str(len(figure.values)), figure.text()] for figure in figures]
    title = f"data path, {px} px, batch {flags.batch}, {path.backend.name}{_comma(run.label)}"
    outcome.tables.append(table(title, ["part", "unit", "n", "median [min .. max]"], rows))
    medians = {name: statistics.median(values) for name, values in measured.items()}
    used = () if run.caches else USED.get(path.backend.name, ())
    alone = {name: medians[name] for name in used if name in medians}
    verdict = find_bottleneck(alone, medians[TOGETHER], need)
    outcome.verdicts[f"{px} px{_comma(run.label)}"] = verdict.sentence()


def _name(what: str, px: int, run: DataRun) -> str:
    return f"{what}, {px} px{_comma(run.label)}"


def _comma(label: str) -> str:
    return f", {label}" if label else ""
