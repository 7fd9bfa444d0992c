"""Learning rate and momentum of every update of a run: ``Schedule.lr(step)``, ``Schedule.momentum(step)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fasttrain.config.schema import (
    MomentumCycleConfig,
    PolynomialScheduleConfig,
    RunConfig,
    ScheduleConfig,
    StepScheduleConfig,
)
from fasttrain.schedule import curves
from fasttrain.stages import Plan


@dataclass(frozen=True)
class Schedule:
    """What each update uses, by its global step; keeps no state, so a resume needs none.

    Time is counted in epochs: e, the recipe's epochs that are complete once the update is made (fractional),
    W, the warm-up, and E, the whole recipe. So the first update is above zero, the peak falls on the last
    update of the warm-up, and the last update of the run has e = E exactly.

    Attributes:
        plan: The run's epochs and steps.
        kind: Name of the curve: linear, cosine, step, polynomial.
        curve: Learning rate after the warm-up by (share done, peak_lr, end_lr), see ``curves.py``.
        peak_lr: ``optimizer.lr``.
        end_lr: Learning rate of the last update; a floor where kind is step.
        warmup_epochs: W.
        scale_with_batch: Multiply by the batch over the run's first batch.
        base_momentum: ``optimizer.momentum``, used where there is no cycle.
        cycle: Momentum at the lowest and at the peak learning rate, or None.
    """

    plan: Plan
    kind: str
    curve: Callable[[float, float, float], float]
    peak_lr: float
    end_lr: float
    warmup_epochs: float
    scale_with_batch: bool
    base_momentum: float
    cycle: MomentumCycleConfig | None

    def lr(self, step: int) -> float:
        """Learning rate used for the update of global step ``step``.

        Linear from zero to the peak over the warm-up, ``peak_lr * e / W``, then the curve. Recipes of
        DAWNBench that change the batch scale with it: ``scale_with_batch``.

        Raises:
            ValueError: The run has no such step.
        """
        epochs_done = self.plan.epochs_done(step)
        if epochs_done <= self.warmup_epochs:
            lr = self.peak_lr * (epochs_done / self.warmup_epochs)
        else:
            lr = self.curve(self._done_frac(epochs_done), self.peak_lr, self.end_lr)
        if self.scale_with_batch:
            # arXiv:1706.02677, section 2.1: k times the batch, k times the learning rate.
            lr *= self.plan.epoch_at(step).batch_size / self.plan.epochs[0].batch_size
        return lr

    def momentum(self, step: int) -> float:
        """Momentum used for the update of global step ``step``.

        With a cycle: ``high - (high - low) * phase``, where the phase is e / W in the warm-up and
        (E - e) / (E - W) after it. So momentum falls from ``high`` to ``low`` as the learning rate rises and
        is back at ``high`` at the last update. With the linear schedule the phase is the learning rate's
        place between zero, peak and ``end_lr``; the other curves keep these straight lines.

        Source: DAWNBench entry of Alibaba (16 x 8 V100): momentum "cycle linear" 0.98 / 0.90.
        """
        if self.cycle is None:
            return self.base_momentum
        epochs_done = self.plan.epochs_done(step)
        if epochs_done <= self.warmup_epochs:
            phase = epochs_done / self.warmup_epochs
        else:
            phase = 1 - self._done_frac(epochs_done)
        return self.cycle.high - (self.cycle.high - self.cycle.low) * phase

    def _done_frac(self, epochs_done: float) -> float:
        """Share of the epochs after the warm-up that is complete; exactly 1 at the end."""
        return (epochs_done - self.warmup_epochs) / (self.plan.recipe_epochs - self.warmup_epochs)


def build_schedule(config: RunConfig, plan: Plan) -> Schedule:
    """The schedule that ``config.schedule`` names, with ``optimizer.lr`` as its peak.

    The config has passed ``schedule/check.py``.
    """
    return Schedule(
        plan=plan,
        kind=config.schedule.kind,
        curve=_curve(config.schedule),
        peak_lr=config.optimizer.lr,
        end_lr=config.schedule.end_lr,
        warmup_epochs=config.schedule.warmup_epochs,
        scale_with_batch=config.schedule.scale_with_batch,
        base_momentum=config.optimizer.momentum,
        cycle=config.schedule.momentum,
    )


def _curve(schedule: ScheduleConfig) -> Callable[[float, float, float], float]:
    if isinstance(schedule, StepScheduleConfig):
        return partial(curves.step, drop_at_frac=tuple(schedule.drop_at_frac), factor=schedule.factor)
    if isinstance(schedule, PolynomialScheduleConfig):
        return partial(curves.polynomial, power=schedule.power)
    return {"linear": curves.linear, "cosine": curves.cosine}[schedule.kind]
