"""``fasttrain bench data``: the data path part by part and as a whole, beside what the training step needs."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fasttrain.bench import data_parts, stage_change
from fasttrain.bench.arguments import DataFlags
from fasttrain.bench.data_parts import Parts
from fasttrain.bench.data_report import BARE, DECODING, TOGETHER, PathResult, PxResult, report_needs, report_path
from fasttrain.bench.data_runs import DataRun, step_arm
from fasttrain.bench.figures import Outcome, lacking
from fasttrain.bench.first_pass import FirstPass, check_first_pass, measure_first_pass, report_first_pass
from fasttrain.bench.measure import drain, now
from fasttrain.bench.progress import Watch, rate_text
from fasttrain.bench.stage_change import StageChanges
from fasttrain.bench.step import measure_arm, rates_text, within
from fasttrain.bench.training import Measured, reset_device
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


class DataBenchmark:
    """Owns what ``bench data`` has measured; ``outcome`` and ``missing`` tell of it at any time."""

    def __init__(self, flags: DataFlags, runs: Sequence[DataRun], world: World) -> None:
        self._flags, self._runs, self._world = flags, runs, world
        self._sides = [stage.px for stage in runs[0].run.config.stages]
        self._step_rates: dict[int, list[float]] = {px: [] for px in self._sides}
        self._paths = [PathResult(run) for run in runs]
        self._changes: list[StageChanges] = []
        self._passes = [FirstPass(run.label, self._sides[0]) for run in runs if flags.first_pass]

    def measure(self) -> None:
        """Measure what the flags ask for.

        Raises:
            ConfigError: A batch larger than the set, or with --first-pass one of which an epoch has too few.
        """
        bench = begin(self._flags, self._runs, self._world)
        if self._flags.first_pass:
            check_first_pass(self._runs[0], self._world)
        if self._flags.need == "measure":
            self._measure_step(bench)
        for result in self._paths:
            measure_path(bench, result, parts_too=result is self._paths[0])
        for run in self._runs if self._flags.stage_changes else ():
            self._measure_changes(bench, run)
        for run, first_pass in zip(self._runs, self._passes, strict=False):
            measure_first_pass(first_pass, run, self._flags, self._world, bench.device)

    def outcome(self) -> Outcome:
        """Figures, tables and verdicts of what is measured."""
        outcome, needs = Outcome(), self._needs()
        for path in self._paths:
            report_path(outcome, path, needs, self._flags.batch)
        if self._flags.need == "measure":
            told = {result.px for path in self._paths for result in path.sides if result.rates()}
            report_needs(outcome, {px: need for px, need in needs.items() if px not in told})
        for changes in self._changes:
            stage_change.report(outcome, changes)
        for first_pass in self._passes:
            report_first_pass(outcome, first_pass)
        return outcome

    def missing(self) -> list[str]:
        """What is still to be measured."""
        found, flags = list[str](), self._flags
        for px in self._sides if flags.need == "measure" else ():
            found += lacking(f"need of the training step, {px} px", len(self._step_rates[px]), flags.repeats)
        for path in self._paths:
            comma = f", {path.run.label}" if path.run.label else ""
            if path.run.caches:
                found += lacking(f"pass that fills the cache{comma}", int(path.fill is not None), 1)
            done = {result.px: result.repeats for result in path.sides}
            for px in self._sides:
                found += lacking(f"data path, {px} px{comma}", done.get(px, 0), flags.repeats)
        gone_through = {changes.label: len(changes.lost_ms) for changes in self._changes}
        for run in self._runs:
            comma = f", {run.label}" if run.label else ""
            found += lacking(f"stage changes{comma}", gone_through.get(run.label, 0), flags.stage_changes)
        for first_pass in self._passes:
            comma = f", {first_pass.label}" if first_pass.label else ""
            found += lacking(f"first pass{comma}", len(first_pass.trained), flags.repeats)
        return found

    def _needs(self) -> dict[int, float]:
        """Images/s of the training step by px, where they are known; empty where they are not wanted."""
        need = self._flags.need
        if not isinstance(need, str):
            return dict(zip(self._sides, need, strict=True))
        return {px: statistics.median(rates) for px, rates in self._step_rates.items() if rates}

    def _measure_step(self, bench: Bench) -> None:
        arm, epochs, watch = step_arm(self._flags, bench.run.run.config), list[Measured](), Watch()

        def take(epoch: Measured) -> None:
            epochs.append(epoch)
            if epoch.rate is not None:
                self._step_rates[epoch.row.px].append(epoch.rate)

        num_classes = bench.images.num_classes
        warmup_s = measure_arm(
            arm, self._world, take, repeats=self._flags.repeats, steps=STEP_STEPS, num_classes=num_classes
        )
        reset_device()
        watch.say("need of the training step", rates_text(epochs, arm.shapes), within=within(epochs, warmup_s))

    def _measure_changes(self, bench: Bench, run: DataRun) -> None:
        changes = StageChanges(run.label, on_gpu=bench.device.type == "cuda")
        self._changes.append(changes)
        with opened_path(bench, run) as path:
            if run.caches:
                fill(bench, path, run)
            watch = Watch()
            stage_change.measure(changes, path, bench.plan, self._flags, self._needs(), bench.device)
        lost = statistics.median(changes.lost_ms)
        watch.say(f"stage changes: {len(changes.lost_ms)}", run.label, f"{lost:.1f} ms lost by one")


def begin(flags: DataFlags, runs: Sequence[DataRun], world: World) -> Bench:
    """Look for the images and choose the device.

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
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    return Bench(flags, runs[0], images, plan, device)


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


def measure_path(bench: Bench, result: PathResult, *, parts_too: bool) -> None:
    """A run's path as a whole, px by px, and with ``parts_too`` all its parts alone."""
    run = result.run
    with opened_path(bench, run) as path, opened_parts(bench, wanted=parts_too) as parts:
        result.backend = path.backend.name
        if parts is not None:
            result.notes += parts.left_out
        if run.caches:
            result.fill = bench.plan.epochs[0].px, fill(bench, path, run)
        for px in dict.fromkeys(epoch.px for epoch in bench.plan.epochs):
            measure_px(bench, result, path, parts, px)


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


def fill(bench: Bench, path: DataPath, run: DataRun) -> float:
    """Images/s of the pass that fills a cache, without training."""
    epoch, watch = bench.plan.epochs[0], Watch()
    started = now(bench.device)
    for _ in path.train_epoch(epoch):
        pass
    rate = epoch.images / (now(bench.device) - started)
    watch.say("pass that fills the cache", run.label, f"{epoch.px} px: {rate_text(rate)}")
    return rate


def measure_px(bench: Bench, result: PathResult, path: DataPath, parts: Parts | None, px: int) -> None:
    """All that is drained at one px, the parts taking turns."""
    flags, run, watch = bench.flags, result.run, Watch()
    epochs = [epoch for epoch in bench.plan.epochs if epoch.px == px]
    streams = {} if parts is None else parts.streams(epochs[0], flags.batch)
    streams[TOGETHER] = data_parts.through_path(path, epochs)
    # The path as it decodes, whatever the run caches.
    ours = DECODING if run.caches else TOGETHER
    if parts is not None and parts.compares_dali:
        if run.caches:
            streams[ours] = parts.through_backend(epochs[0], flags.batch)
        like = parts.backend if run.caches else path.backend
        streams[BARE] = parts.bare_dali(epochs[0], flags.batch, like)
    side = PxResult(px, ours, {name: [] for name in streams})
    result.sides.append(side)
    try:
        for _ in range(flags.repeats):
            for name, batches in streams.items():
                side.drained[name].append(drain(batches, flags.seconds, bench.device))
    finally:
        for batches in streams.values():
            batches.close()
    medians = [f"{name} {rate_text(statistics.median(rates))}" for name, rates in side.rates().items()]
    watch.say("data path", run.label, f"{px} px: {'; '.join(medians)}")
