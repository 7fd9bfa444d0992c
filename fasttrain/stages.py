"""The stage table: everything about a run that is counted in epochs, steps or images.

Pure functions of (stages, number of training images, number of ranks). Nothing else in the project counts
steps, so that a straight run and any resume agree: both ask the same function with the same global step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrain.config.schema import RunConfig, StageConfig
from fasttrain.errors import ConfigError, Problem


@dataclass(frozen=True)
class EpochPlan:
    """One epoch as it is executed.

    Attributes:
        epoch: Zero-based.
        stage: Zero-based row of the stage table; ``stages.STAGE.px=...`` overrides that row.
        px: Side of the square training images, pixels.
        min_area: Smallest crop as a share of the image's area.
        batch_size: Images of one optimizer step over all ranks.
        accumulate: Micro-batches whose gradients one rank adds up for one step.
        val_px: Side of the validation images, pixels.
        rectangular_val: Validation keeps each image's aspect ratio.
        steps: Optimizer steps run in this epoch.
        full_steps: Optimizer steps of a whole epoch; more than ``steps`` only where steps_per_stage is set.
        first_step: Global step at its start, as executed.
        recipe_epoch: Zero-based epoch of the recipe that this one stands for; the same as ``epoch`` unless
            steps_per_stage is set. Schedule, order of images and augmentation go by it.
    """

    epoch: int
    stage: int
    px: int
    min_area: float
    batch_size: int
    accumulate: int
    val_px: int
    rectangular_val: bool
    steps: int
    full_steps: int
    first_step: int
    recipe_epoch: int

    @property
    def images(self) -> int:
        """Images trained on in this epoch over all ranks, those that fill the last batch included."""
        return self.steps * self.batch_size


@dataclass(frozen=True)
class Plan:
    """All epochs of a run, and what follows from them.

    Attributes:
        epochs: In order of execution; at least one.
        num_train: Training images.
        world_size: Ranks, one device each.
        recipe_epochs: Epochs of the whole recipe; the schedule ends there even where steps_per_stage cuts
            the run short.
    """

    epochs: tuple[EpochPlan, ...]
    num_train: int
    world_size: int
    recipe_epochs: int

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run as executed."""
        return self.epochs[-1].first_step + self.epochs[-1].steps

    def epoch_at(self, step: int) -> EpochPlan:
        """The epoch that runs the update of global step ``step``.

        Raises:
            ValueError: ``step`` is outside 0 .. total_steps - 1: there is no step past the last.
        """
        if not 0 <= step < self.total_steps:
            raise ValueError(f"step {step} is outside the run's steps 0 to {self.total_steps - 1}")
        return self.epochs[bisect_right(self.epochs, step, key=lambda epoch: epoch.first_step) - 1]

    def epochs_done(self, step: int) -> float:
        """Recipe epochs completed after the update of global step ``step``; exact at the end of an epoch."""
        epoch = self.epoch_at(step)
        return epoch.recipe_epoch + (step - epoch.first_step + 1) / epoch.full_steps

    def images_done(self, step: int) -> int:
        """Images trained on over all ranks, after the update of global step ``step``."""
        epoch = self.epoch_at(step)
        before = sum(e.images for e in self.epochs[: epoch.epoch])
        return before + (step - epoch.first_step + 1) * epoch.batch_size

    def micro_batch(self, epoch: EpochPlan) -> int:
        """Images that one rank takes at once in ``epoch``."""
        return epoch.batch_size // self.world_size // epoch.accumulate

    @property
    def largest_micro_batch(self) -> int:
        """Most images that one rank takes at once."""
        return max(self.micro_batch(epoch) for epoch in self.epochs)

    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Distinct (px, micro-batch) of the training steps, in order of first use: what to compile."""
        return tuple(dict.fromkeys((epoch.px, self.micro_batch(epoch)) for epoch in self.epochs))


def steps_per_epoch(num_train: int, batch_size: int) -> int:
    """Optimizer steps of a whole epoch: the last batch is filled from the epoch's first images."""
    return -(-num_train // batch_size)


def accumulation(rank_batch: int, device_batch_size: int | None) -> int:
    """Smallest number of equal micro-batches in which one rank's images fit on its device.

    A bound that does not divide the rank's images gives the next smaller micro-batch that does: 256 images
    under a bound of 100 are 4 x 64. Equal parts, so that a stage has one shape and every image one weight.

    Args:
        rank_batch: Images of one step on one rank.
        device_batch_size: Most images on a device at once; None for no bound.
    """
    if device_batch_size is None:
        return 1
    fewest = -(-rank_batch // device_batch_size)
    return next(parts for parts in range(fewest, rank_batch + 1) if rank_batch % parts == 0)


def build_plan(
    stages: Sequence[StageConfig],
    *,
    num_train: int,
    world_size: int,
    device_batch_size: int | None,
    steps_per_stage: int | None,
) -> Plan:
    """Lay out the run.

    Args:
        stages: The stage table; ``batch_size`` counts the images of one step over all ranks.
        num_train: Training images.
        world_size: Ranks.
        device_batch_size: Most images on a device at once; the rest is accumulated. None for no bound.
        steps_per_stage: Run one epoch of at most so many steps for each stage, at the place in the schedule
            where the recipe has that stage's first epoch. None runs the recipe.

    Raises:
        ConfigError: No stages, a batch that does not divide over the ranks, fewer images than a batch.
    """
    if problems := _problems(stages, num_train, world_size):
        raise ConfigError(problems)
    epochs: list[EpochPlan] = []
    first_step = recipe_epoch = 0
    for row, stage in enumerate(stages):
        full_steps = steps_per_epoch(num_train, stage.batch_size)
        for offset in range(stage.epochs if steps_per_stage is None else 1):
            epoch = EpochPlan(
                epoch=len(epochs),
                stage=row,
                px=stage.px,
                min_area=stage.min_area,
                batch_size=stage.batch_size,
                accumulate=accumulation(stage.batch_size // world_size, device_batch_size),
                val_px=stage.val_px,
                rectangular_val=stage.rectangular_val,
                steps=min(full_steps, steps_per_stage or full_steps),
                full_steps=full_steps,
                first_step=first_step,
                recipe_epoch=recipe_epoch + offset,
            )
            epochs.append(epoch)
            first_step += epoch.steps
        recipe_epoch += stage.epochs
    return Plan(tuple(epochs), num_train, world_size, recipe_epochs=recipe_epoch)


def check(config: RunConfig, num_train: int | None, world_size: int | None = None) -> list[Problem]:
    """What makes the stage table impossible to run, row by row.

    Args:
        config: The run.
        num_train: Training images; None where they are not known yet.
        world_size: Ranks; None for ``trainer.devices * trainer.num_nodes``.
    """
    ranks = world_size or config.trainer.devices * config.trainer.num_nodes
    return _problems(config.stages, num_train, ranks)


def _problems(stages: Sequence[StageConfig], num_train: int | None, world_size: int) -> list[Problem]:
    if not stages:
        row = "{epochs: 5, px: 128, min_area: 0.25, batch_size: 256, val_px: 128}"
        return [Problem("stages=[]: a run needs at least one row of the stage table", f"'stages=[{row}]'")]
    rows = (_batch_problem(row, stage.batch_size, num_train, world_size) for row, stage in enumerate(stages))
    return [problem for problem in rows if problem]


def _batch_problem(row: int, batch_size: int, num_train: int | None, world_size: int) -> Problem | None:
    """What is wrong with the batch of one row; at most one problem, whose fix mends all there is."""
    key = f"stages.{row}.batch_size"
    if num_train is not None and num_train < batch_size:
        what = f"{key}={batch_size}: a batch is larger than the training set of {num_train} images"
        if num_train < world_size:
            return Problem(what, f"add images: {world_size} ranks need at least {world_size}, one each")
        return Problem(what, f"{key}={num_train // world_size * world_size}, or add training images")
    if batch_size % world_size == 0:
        return None
    below = batch_size // world_size * world_size
    sizes = [size for size in (below, below + world_size) if size > 0 and size <= (num_train or size)]
    fix = " or ".join(f"{key}={size}" for size in sizes)
    if not fix:
        fix = f"use at most {batch_size} ranks (trainer.devices x trainer.num_nodes)"
    return Problem(f"{key}={batch_size}: does not divide over {world_size} ranks", fix)
