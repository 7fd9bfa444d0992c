"""The first pass of a run (decode, fill the cache, train) beside decoding alone, crops and whole images."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from fasttrain.bench.arguments import DataFlags
from fasttrain.bench.arms import BENCH_LR, ShortRun, without_cache
from fasttrain.bench.data_runs import DataRun
from fasttrain.bench.figures import Figure, Outcome, table
from fasttrain.bench.measure import now
from fasttrain.bench.progress import Watch, rate_text
from fasttrain.bench.training import Measured, train_briefly
from fasttrain.config.compose import ComposedRun
from fasttrain.data.backend import Request
from fasttrain.data.backend_choice import start_backend
from fasttrain.data.cache_plan import cache_px, caches, serves
from fasttrain.data.cached_training import WholeImage
from fasttrain.data.order import epoch_batches, epoch_order
from fasttrain.data.path import build_data_path
from fasttrain.errors import ConfigError, Problem
from fasttrain.run import planning
from fasttrain.strategy.world import World
from fasttrain.trainer.meters import RATE_SKIP_STEPS

# Below this many steps that count, those decoded before the first of them weigh.
FEW_STEPS = 20


def first_pass_run(run: ComposedRun) -> ComposedRun:
    """One epoch of the first px, as train.py would go through it."""
    config = run.config
    config = replace(
        config,
        stages=[replace(config.stages[0], epochs=1)],
        optimizer=replace(config.optimizer, lr=BENCH_LR),
        schedule=replace(config.schedule, warmup_epochs=0, end_lr=0),
    )
    return replace(run, config=config)


@dataclass
class FirstPass:
    """What the first pass of one run gave, as far as it has been measured.

    Attributes:
        label: Of the run.
        px: Of its first stage.
        steps: Of an epoch, that count; 0 while nothing is measured.
        decoded: Images/s of decoding alone: the crops of an epoch without a cache.
        whole: Images/s of decoding alone what fills the cache, whole images in its squares; empty without files or a
            cache.
        trained: Images/s of decoding, filling the cache and training; each one after the same ones of ``decoded`` and
            ``whole``.
    """

    label: str
    px: int
    steps: int = 0
    decoded: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)


def measure_first_pass(result: FirstPass, run: DataRun, flags: DataFlags, world: World, device: torch.device) -> None:
    """Measure all, taking turns, each time with nothing in any cache; ``check_first_pass`` comes before it."""
    short = first_pass_run(run.run)
    uncached = replace(short, config=without_cache(short.config))
    for turn in range(1, flags.repeats + 1):
        watch = Watch()
        result.decoded.append(decode_only(uncached, world, device))
        if (whole := decode_whole(short, world, device)) is not None:
            result.whole.append(whole)
        epochs = list[Measured]()
        train_briefly(ShortRun(short), world, epochs.append)
        (epoch,) = epochs
        assert epoch.rate is not None, "check_first_pass has seen to it that there are steps to time"
        result.steps = epoch.row.step - RATE_SKIP_STEPS
        result.trained.append(epoch.rate)
        rates = f"decode, fill, train {rate_text(epoch.rate)}; decode only {rate_text(result.decoded[-1])}"
        rates += f", whole images {rate_text(result.whole[-1])}" if result.whole else ""
        watch.say(f"first pass {turn}/{flags.repeats}", run.label, f"{result.px} px: {rates}")


def report_first_pass(outcome: Outcome, result: FirstPass) -> None:
    """Add the figures and the table of a run, where it has any."""
    suffix = f", {result.px} px" + (f", {result.label}" if result.label else "")
    ratios, over_whole = (
        tuple(t / d for t, d in zip(result.trained, alone, strict=False)) for alone in (result.decoded, result.whole)
    )
    figures = [
        Figure(name, unit, tuple(values))
        for name, unit, values in (
            (f"first pass: decode, fill, train{suffix}", "images/s", result.trained),
            (f"decode only{suffix}", "images/s", result.decoded),
            (f"decode only, whole images{suffix}", "images/s", result.whole),
            (f"first pass over decode only{suffix}", "ratio", ratios),
            (f"first pass over decode only, whole images{suffix}", "ratio", over_whole),
        )
        if values
    ]
    if not figures:
        return
    outcome.figures += figures
    if 0 < result.steps < FEW_STEPS:
        outcome.notes.append(
            f"first pass{suffix}: {result.steps} steps of an epoch count; "
            "what was decoded ahead of them flatters decoding alone"
        )
    rows = [[figure.name, figure.unit, str(len(figure.values)), figure.text()] for figure in figures]
    outcome.tables.append(table(f"first pass{suffix}", ["figure", "unit", "n", "median [min .. max]"], rows))


def check_first_pass(run: DataRun, world: World) -> None:
    """See that an epoch has steps that count.

    Raises:
        ConfigError: It has no more than those that are left out.
    """
    short = first_pass_run(run.run)
    images = planning.scan_images(short.config, world)
    plan, _ = planning.lay_out(short.config, images, world)
    steps = plan.epochs[0].steps
    if steps <= RATE_SKIP_STEPS:
        most = images.num_train // (RATE_SKIP_STEPS + FEW_STEPS)
        what = f"--first-pass: an epoch has {steps} steps, of which the first {RATE_SKIP_STEPS} do not count"
        raise ConfigError(Problem(what, f"--batch {max(1, most)}"))


def decode_only(run: ComposedRun, world: World, device: torch.device) -> float:
    """Images/s of one epoch drained without training, without its first steps, which the trainer leaves out too."""
    images = planning.scan_images(run.config, world)
    plan, _ = planning.lay_out(run.config, images, world)
    epoch = plan.epochs[0]
    path = build_data_path(run.config, images, plan, device=device, rank=0, world_size=1)
    try:
        return drained_rate(path.train_epoch(epoch), epoch.batch_size, device)
    finally:
        path.close()


def decode_whole(run: ComposedRun, world: World, device: torch.device) -> float | None:
    """Likewise of the images that the first epoch puts into its cache; None where none are decoded for it."""
    images = planning.scan_images(run.config, world)
    side = cache_px(run.config, images.num_train)
    plan, _ = planning.lay_out(run.config, images, world)
    epoch = plan.epochs[0]
    if images.train.images is not None or not caches(run.config) or not serves(side, epoch.px):
        return None
    order = epoch_order(images.num_train, run.config.seed, epoch.recipe_epoch)
    batches = epoch_batches(order, epoch.batch_size)[: epoch.steps]
    backend = start_backend(run.config, images, plan, device=device, rank=0)
    micro_batch = plan.micro_batch(epoch)
    try:
        parts = batches.reshape(-1, micro_batch)
        requests = (Request(images.train, rows, side, side, WholeImage(len(rows))) for rows in parts)
        return drained_rate(steps_of(backend.images(requests), epoch.accumulate), epoch.batch_size, device)
    finally:
        backend.close()


def steps_of(micro_batches: Iterator[object], accumulate: int) -> Iterator[object]:
    """One item for each ``accumulate`` of them."""
    while list(itertools.islice(micro_batches, accumulate)):
        yield None


def drained_rate(steps: Iterator[object], batch_size: int, device: torch.device) -> float:
    """Images/s of an epoch's steps, the first ones left out."""
    for _ in range(RATE_SKIP_STEPS):
        next(steps)
    started = now(device)
    counted = sum(1 for _ in steps)
    return counted * batch_size / (now(device) - started)
