"""Training time of a whole recipe, from the measured rate of each of its stages: a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fasttrain.stages import Plan


@dataclass(frozen=True)
class StageTime:
    """One stage of a recipe.

    Attributes:
        stage: Zero-based row of the stage table.
        px: Of training.
        batch_size: Images of a step over all ranks.
        epochs, steps: Of the stage.
        rate: Images/s over all ranks.
        seconds: Projected, training alone.
    """

    stage: int
    px: int
    batch_size: int
    epochs: int
    steps: int
    rate: float
    seconds: float


def stage_times(plan: Plan, rates: Mapping[tuple[int, int], float]) -> list[StageTime]:
    """The stages of a recipe at measured rates.

    Args:
        plan: Of the recipe.
        rates: Images/s over all ranks by (px, batch size); has every shape of the plan.
    """
    times = []
    for stage in dict.fromkeys(epoch.stage for epoch in plan.epochs):
        epochs = [epoch for epoch in plan.epochs if epoch.stage == stage]
        first, steps = epochs[0], sum(epoch.steps for epoch in epochs)
        rate = rates[first.px, first.batch_size]
        seconds = steps * first.batch_size / rate
        times.append(StageTime(stage, first.px, first.batch_size, len(epochs), steps, rate, seconds))
    return times
