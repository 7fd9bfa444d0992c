"""The first pass of a run (decode, fill the cache, train) beside decoding alone."""

from __future__ import annotations

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
from fasttrain.data.path import build_data_path
from fasttrain.errors import ConfigError, Problem
from fasttrain.run import planning
from fasttrain.strategy.world import World
from fasttrain.trainer.meters import RATE_SKIP_STEPS


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
        decoded: Images/s of decoding alone.
        trained: Images/s of decoding, filling the cache and training; each one after the same one of ``decoded``.
    """

    label: str
    px: int
    decoded: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)


def measure_first_pass(result: FirstPass, run: DataRun, flags: DataFlags, world: World, device: torch.device) -> None:
    """Measure both, taking turns, each time with nothing in any cache.

    Raises:
        ConfigError: An epoch has too few steps to time any.
    """
    short = first_pass_run(run.run)
    uncached = replace(short, config=without_cache(short.config))
    for turn in range(1, flags.repeats + 1):
        watch = Watch()
        result.decoded.append(decode_only(uncached, world, device))
        epochs = list[Measured]()
        train_briefly(ShortRun(short), world, epochs.append)
        (epoch,) = epochs
        assert epoch.rate is not None, "decode_only has seen to it that there are steps to time"
        result.trained.append(epoch.rate)
        rates = f"decode, fill, train {rate_text(epoch.rate)}; decode only {rate_text(result.decoded[-1])}"
        watch.say(f"first pass {turn}/{flags.repeats}", run.label, f"{result.px} px: {rates}")


def report_first_pass(outcome: Outcome, result: FirstPass) -> None:
    """Add the figures and the table of a run, where it has any."""
    suffix = f", {result.px} px" + (f", {result.label}" if result.label else "")
    ratios = tuple(t / d for t, d in zip(result.trained, result.decoded, strict=False))
    figures = [
        Figure(name, unit, tuple(values))
        for name, unit, values in (
            (f"first pass: decode, fill, train{suffix}", "images/s", result.trained),
            (f"decode only{suffix}", "images/s", result.decoded),
            (f"first pass over decode only{suffix}", "ratio", ratios),
        )
        if values
    ]
    if not figures:
        return
    outcome.figures += figures
    rows = [[figure.name, figure.unit, str(len(figure.values)), figure.text()] for figure in figures]
    outcome.tables.append(table(f"first pass{suffix}", ["figure", "unit", "n", "median [min .. max]"], rows))


def decode_only(run: ComposedRun, world: World, device: torch.device) -> float:
    """Images/s of one epoch drained without training, without its first steps, which the trainer leaves out too.

    Raises:
        ConfigError: The epoch has no more steps than these.
    """
    images = planning.scan_images(run.config, world)
    plan, _ = planning.lay_out(run.config, images, world)
    epoch = plan.epochs[0]
    if epoch.steps <= RATE_SKIP_STEPS:
        most = images.num_train // (RATE_SKIP_STEPS + 1)
        what = f"--first-pass: an epoch has {epoch.steps} steps, of which the first {RATE_SKIP_STEPS} do not count"
        raise ConfigError(Problem(what, f"--batch {max(1, most)}"))
    path = build_data_path(run.config, images, plan, device=device, rank=0, world_size=1)
    try:
        steps = path.train_epoch(epoch)
        for _ in range(RATE_SKIP_STEPS):
            next(steps)
        started = now(device)
        for _ in steps:
            pass
        return (epoch.steps - RATE_SKIP_STEPS) * epoch.batch_size / (now(device) - started)
    finally:
        path.close()
