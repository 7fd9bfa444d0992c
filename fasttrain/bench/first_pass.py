"""The first pass of a run (decode, fill the cache, train) beside decoding alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from fasttrain.bench.arguments import DataFlags
from fasttrain.bench.arms import BENCH_LR, without_cache
from fasttrain.bench.data_runs import DataRun
from fasttrain.bench.figures import Figure, Outcome, table
from fasttrain.bench.measure import now
from fasttrain.bench.training import train_briefly
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


def measure_first_pass(outcome: Outcome, run: DataRun, flags: DataFlags, world: World, device: torch.device) -> None:
    """Measure both, taking turns, each time with nothing in any cache, and add the figures.

    Raises:
        ConfigError: An epoch has too few steps to time any.
    """
    short = first_pass_run(run.run)
    uncached = replace(short, config=without_cache(short.config))
    stage = short.config.stages[0]
    trained, decoded = [], []
    for _ in range(flags.repeats):
        decoded.append(decode_only(uncached, world, device))
        (epoch,) = train_briefly(short, world)
        assert epoch.row.images_per_second is not None, "decode_only has seen to it that there are steps to time"
        trained.append(epoch.row.images_per_second)
    suffix = f", {stage.px} px" + (f", {run.label}" if run.label else "")
    ratios = tuple(t / d for t, d in zip(trained, decoded, strict=True))
    figures = [
        Figure(f"first pass: decode, fill, train{suffix}", "images/s", tuple(trained)),
        Figure(f"decode only{suffix}", "images/s", tuple(decoded)),
        Figure(f"first pass over decode only{suffix}", "ratio", ratios),
    ]
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
