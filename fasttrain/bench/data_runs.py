"""The data paths that ``bench data`` measures, composed and checked as train.py does. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fasttrain.bench.arguments import DataFlags
from fasttrain.bench.arms import Arm, Shape, ranks_of
from fasttrain.config.compose import ComposedRun, compose_run
from fasttrain.config.schema import RunConfig, StageConfig
from fasttrain.errors import ConfigError, Problem
from fasttrain.run import planning
from fasttrain.strategy.world import World

# Epochs of each px in the plan: more than are gone through, so that each one is fresh.
EPOCHS = 1000


@dataclass(frozen=True)
class DataRun:
    """One way to get at images.

    Attributes:
        label: What it has other than the rest, e.g. ``cache gpu``; empty for a single one.
        run: Its settings, with a stage for each px.
    """

    label: str
    run: ComposedRun

    @property
    def caches(self) -> bool:
        """Whether its first pass may fill a cache."""
        return getattr(self.run.config.data, "cache", "off") != "off"


def build_data_runs(flags: DataFlags) -> tuple[list[DataRun], World]:
    """Every value of ``data.cache`` that is compared, or the run's own.

    Raises:
        ConfigError: Settings that cannot be run, no images, several ranks.
    """
    given = [(f"cache {value}", [f"data.cache={value}"]) for value in flags.caches] or [("", [])]
    runs = []
    for label, words in given:
        run = compose_run([*flags.overrides, *words])
        runs.append(DataRun(label, replace(run, config=with_stages(run.config, flags))))
    config = runs[0].run.config
    for data_run in runs:
        planning.check_rooms(data_run.run.config)
    world = ranks_of(config, "data")
    if world.size > 1:
        raise ConfigError(Problem(f"bench data measures one rank, not {world.size}", "start it without torchrun"))
    if config.data.backend == "synthetic":
        raise ConfigError(
            Problem("data.backend=synthetic: there is nothing to read", "data.backend=auto data.root=/path/to/images")
        )
    _check_lengths(flags, len(config.stages))
    return runs, world


def with_stages(config: RunConfig, flags: DataFlags) -> RunConfig:
    """The config with a stage for each px that is measured, all images of a step on the device at once."""
    sides = flags.px or tuple(dict.fromkeys(stage.px for stage in config.stages))
    rows = [_row(config.stages, px, flags.batch) for px in sides]
    trainer = replace(config.trainer, device_batch_size=None, steps_per_stage=None)
    return replace(config, stages=rows, trainer=trainer, dry_run=False, run_dir=None, resume=None)


def step_arm(flags: DataFlags, config: RunConfig) -> Arm:
    """The training step on pixels that cost nothing, at the measured shapes: what the data path must keep up with."""
    run = compose_run([*flags.overrides, "data.backend=synthetic"])
    trainer = replace(run.config.trainer, device_batch_size=None)
    shapes = tuple(Shape(stage.px, stage.batch_size) for stage in config.stages)
    return Arm("", replace(run, config=replace(run.config, trainer=trainer)), "random", shapes)


def _row(stages: Sequence[StageConfig], px: int, batch_size: int) -> StageConfig:
    like = next((stage for stage in stages if stage.px == px), stages[0])
    return StageConfig(epochs=EPOCHS, px=px, min_area=like.min_area, batch_size=batch_size, val_px=px)


def _check_lengths(flags: DataFlags, num_px: int) -> None:
    """See that there is a need for each px, and something to change to."""
    if not isinstance(flags.need, str) and len(flags.need) != num_px:
        rates = ",".join(["10000"] * num_px)
        raise ConfigError(Problem(f"--need: {len(flags.need)} rates for {num_px} px", f"--need {rates}"))
    if flags.stage_changes and num_px == 1:
        raise ConfigError(Problem(f"--stage-changes {flags.stage_changes}: one px never changes", "--px 96,128"))
