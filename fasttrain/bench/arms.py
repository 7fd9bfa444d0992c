"""The trainings that ``bench step`` compares, composed and checked as train.py does. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fasttrain.bench.arguments import StepFlags
from fasttrain.bench.fills import WHOLE_EPOCH, file_rows, served_px, with_own_cache
from fasttrain.config.compose import ComposedRun, compose_run
from fasttrain.config.schema import RunConfig, StageConfig
from fasttrain.data.scan import Scan
from fasttrain.errors import ConfigError, Problem
from fasttrain.run import planning
from fasttrain.strategy.world import World, find_world

# Learning rate of every measured step: random labels with a recipe's own could end in infinities, which a chip
# multiplies faster than numbers.
BENCH_LR = 1e-6


@dataclass(frozen=True)
class Shape:
    """What one step takes.

    Attributes:
        px: Side of the images, pixels.
        batch_size: Images over all ranks.
    """

    px: int
    batch_size: int


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        label: What it has other than the rest, e.g. ``bf16, compile on``; empty for a single one.
        run: Its settings, stages and counts as the user gave them.
        data: ``random`` or ``files``.
        shapes: What is measured.
    """

    label: str
    run: ComposedRun
    data: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class ShortRun:
    """What is trained for a measurement.

    Attributes:
        run: Its settings.
        steps: Most steps of an epoch that is no fill.
        fills: Rows of the stage table, zero-based, that are not counted: whole epochs, which fill caches.
    """

    run: ComposedRun
    steps: int = WHOLE_EPOCH
    fills: frozenset[int] = frozenset()


def build_arms(flags: StepFlags) -> list[Arm]:
    """Every combination of the values that are compared.

    Raises:
        ConfigError: Settings that cannot be run.
    """
    switch = {"on": "true", "off": "false"}
    axes = [
        [(value, f"trainer.precision={value}") for value in flags.precision],
        [(f"compile {value}", f"trainer.compile={switch[value]}") for value in flags.compile],
        [(f"capture {value}", f"trainer.capture={switch[value]}") for value in flags.capture],
        [(value, f"optimizer={value}") for value in flags.optimizers],
        [(value, "data.backend=synthetic" if value == "random" else "") for value in flags.data],
    ]
    axes = [axis for axis in axes if axis]
    arms = []
    for combination in itertools.product(*axes):
        words = [word for _, word in combination if word]
        run = compose_run([*flags.overrides, *words])
        compared = [label for (label, _), axis in zip(combination, axes, strict=True) if len(axis) > 1]
        data = combination[-1][0]
        if data == "files" and run.config.data.backend == "synthetic":
            raise ConfigError(
                Problem("--data files: data.backend=synthetic has none", "data.backend=auto data.root=/path/to/images")
            )
        shapes = choose_shapes(run.config.stages, px=flags.px, batch_size=flags.batch)
        arms.append(Arm(", ".join(compared), run, data, shapes))
    return arms


def choose_shapes(
    stages: Sequence[StageConfig], *, px: Sequence[int] | None, batch_size: int | None
) -> tuple[Shape, ...]:
    """What to measure.

    Args:
        stages: Of the recipe.
        px: Asked for; None for those of the stages.
        batch_size: Asked for; None for that of the first stage with the px, else of the first stage.
    """
    batches = {stage.px: stage.batch_size for stage in reversed(stages)}
    if px is None:
        return tuple(dict.fromkeys(Shape(stage.px, batch_size or stage.batch_size) for stage in stages))
    return tuple(Shape(side, batch_size or batches.get(side, stages[0].batch_size)) for side in px)


def measured_run(
    arm: Arm,
    *,
    repeats: int,
    steps: int,
    world_size: int,
    num_classes: int,
    extra_rows: int = 0,
    images: Scan | None = None,
) -> ShortRun:
    """The short run of an arm: a row of the stage table, of which one epoch is run, for each measurement.

    On random pixels the shapes take turns. On files one follows the other, with the fills that ``file_rows`` adds,
    and only the last epoch is validated.

    Args:
        arm: What is trained.
        repeats: Measurements of each shape.
        steps: Of each measurement; an epoch of the files may have fewer.
        world_size: Ranks.
        num_classes: Of random labels.
        extra_rows: Further turns of all shapes behind the counted ones, on random pixels.
        images: Of an arm on files; None where it is only to be checked.
    """
    config, fills = arm.run.config, frozenset[int]()
    if arm.data == "random":
        shapes = [shape for _ in range(repeats + extra_rows) for shape in arm.shapes]
        num_images = steps * max(shape.batch_size for shape in arm.shapes)
        data = replace(
            without_cache(config).data,
            num_train=num_images,
            num_val=world_size,
            num_classes=num_classes,
            holdout_frac=0.0,
        )
        trainer = replace(config.trainer, steps_per_stage=steps)
    else:
        served = served_px(config, [shape.px for shape in arm.shapes], images)
        shapes, fills = file_rows(arm.shapes, repeats=repeats, served=served)
        data = with_own_cache(config, images)
        trainer = replace(config.trainer, steps_per_stage=WHOLE_EPOCH, validate_every_epochs=None)
    rows = [_row(config, shape) for shape in shapes]
    # What the schedule and the optimizer do at an epoch of the recipe must find that epoch in the run.
    rows[-1] = replace(rows[-1], epochs=sum(stage.epochs for stage in config.stages))
    config = replace(
        config,
        stages=rows,
        data=data,
        optimizer=replace(config.optimizer, lr=BENCH_LR),
        schedule=replace(config.schedule, warmup_epochs=0, end_lr=0),
        trainer=trainer,
        run_dir=None,
        resume=None,
        dry_run=False,
    )
    return ShortRun(replace(arm.run, config=config), steps, fills)


def check_arms(arms: Sequence[Arm], *, bare: bool) -> World:
    """See that every arm can be run, and by which ranks.

    Args:
        arms: All of the same ranks.
        bare: Whether a bare loop is set beside each; it has one rank and does no loss scaling.

    Raises:
        ConfigError: One cannot, or its ranks are not there yet.
    """
    world = ranks_of(arms[0].run.config, "step")
    for arm in arms:
        classes = num_classes_of(arm.run, world)
        short = measured_run(arm, repeats=1, steps=1, world_size=world.size, num_classes=classes)
        planning.check_rooms(short.run.config)
    if bare and world.size > 1:
        raise ConfigError(Problem(f"--bare: the bare loop has one rank, not {world.size}", "leave --bare out"))
    if bare and any(arm.run.config.trainer.precision == "fp16" for arm in arms):
        raise ConfigError(Problem("--bare: the bare loop does no loss scaling", "trainer.precision=bf16"))
    return world


def ranks_of(config: RunConfig, bench: str) -> World:
    """The ranks that were started; a benchmark starts none itself.

    Raises:
        ConfigError: Fewer than asked for.
    """
    world = find_world(config)
    if world.must_launch:
        command = f"python -m torch.distributed.run --nproc-per-node {world.size} -m fasttrain bench {bench} ..."
        raise ConfigError(
            Problem(f"trainer.devices={world.size}: a benchmark of several ranks is started by torchrun", command)
        )
    return world


def num_classes_of(run: ComposedRun, world: World) -> int:
    """Classes of random labels: those of the config, else of the images.

    Raises:
        ConfigError: Neither says how many.
    """
    config = run.config
    known = config.data.num_classes or config.model.num_classes
    if known is not None:
        return known
    if config.data.root is None:
        raise ConfigError(
            Problem("data.num_classes=null: random labels need a number of classes", "data.num_classes=1000")
        )
    files = replace(config.data, backend="auto" if config.data.backend == "synthetic" else config.data.backend)
    return planning.scan_images(replace(config, data=files), world).num_classes


def without_cache(config: RunConfig) -> RunConfig:
    """The same run, without a cache of decoded images."""
    off: dict[str, Any] = {"cache": "off"} if hasattr(config.data, "cache") else {}
    return replace(config, data=replace(config.data, **off))


def _row(config: RunConfig, shape: Shape) -> StageConfig:
    like = next((stage for stage in config.stages if stage.px == shape.px), config.stages[0])
    return StageConfig(epochs=1, px=shape.px, min_area=like.min_area, batch_size=shape.batch_size, val_px=shape.px)
