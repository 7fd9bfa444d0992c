"""The first pass of a run (decode, fill the cache, train) beside decoding alone, crops and whole images."""

from __future__ import annotations

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
from fasttrain.config.schema import RunConfig
from fasttrain.data.backend import Request
from fasttrain.data.backend_choice import start_backend
from fasttrain.data.cache_plan import cache_px, caches, serves
from fasttrain.data.cached_training import WholeImage
from fasttrain.data.order import epoch_batches, epoch_order
from fasttrain.data.path import build_data_path
from fasttrain.data.scan import Scan
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
    images = planning.scan_images(short.config, world)
    for turn in range(1, flags.repeats + 1):
        watch = Watch()
        result.decoded.append(decode_only(without_cache(short.config), images, world, device))
        if (whole := decode_whole(short.config, images, world, device)) is not None:
            result.whole.append(whole)
        epochs = list[Measured]()
        train_briefly(ShortRun(short), world, epochs.append, images=images)
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
    config = first_pass_run(run.run).config
    images = planning.scan_images(config, world)
    plan, _ = planning.lay_out(config, images, world)
    steps = plan.epochs[0].steps
    if steps <= RATE_SKIP_STEPS:
        most = images.num_train // (RATE_SKIP_STEPS + FEW_STEPS)
        what = f"--first-pass: an epoch has {steps} steps, of which the first {RATE_SKIP_STEPS} do not count"
        raise ConfigError(Problem(what, f"--batch {max(1, most)}"))


def decode_only(config: RunConfig, images: Scan, world: World, device: torch.device) -> float:
    """Images/s of one epoch drained without training, without its first steps, which the trainer leaves out too."""
    plan, _ = planning.lay_out(config, images, world)
    epoch = plan.epochs[0]
    path = build_data_path(config, images, plan, device=device, rank=0, world_size=1)
    try:
        return drained_rate(path.train_epoch(epoch), epoch.batch_size, RATE_SKIP_STEPS, device)
    finally:
        path.close()


def decode_whole(config: RunConfig, images: Scan, world: World, device: torch.device) -> float | None:
    """Likewise of the images that the first epoch puts into its cache; None where none are decoded for it."""
    side = cache_px(config, images.num_train)
    plan, _ = planning.lay_out(config, images, world)
    epoch = plan.epochs[0]
    if images.train.images is not None or not caches(config) or not serves(side, epoch.px):
        return None
    order = epoch_order(images.num_train, config.seed, epoch.recipe_epoch)
    parts = epoch_batches(order, epoch.batch_size)[: epoch.steps].reshape(-1, plan.micro_batch(epoch))
    requests = (Request(images.train, rows, side, side, WholeImage(len(rows))) for rows in parts)
    backend = start_backend(config, images, plan, device=device, rank=0)
    try:
        skip = RATE_SKIP_STEPS * epoch.accumulate
        return drained_rate(backend.images(requests), plan.micro_batch(epoch), skip, device)
    finally:
        backend.close()


def drained_rate(batches: Iterator[object], batch_size: int, skip: int, device: torch.device) -> float:
    """Images/s of what comes after the first ``skip`` batches."""
    for _ in range(skip):
        next(batches)
    started = now(device)
    counted = sum(1 for _ in batches)
    return counted * batch_size / (now(device) - started)
