"""Communication of captured steps, chosen before training: a few plans are captured at one shape and timed."""

from __future__ import annotations

import math
from typing import Any

import torch
from pytorch_lightning import Trainer

from fasttrain.data.batch import Batch
from fasttrain.strategy.accelerated import AcceleratedDDPStrategy
from fasttrain.strategy.plan import CommPlan
from fasttrain.strategy.stopwatch import slowest_rank_s
from fasttrain.trainer.module import ClassifierModule
from fasttrain.trainer.step import StepShape


def choose_captured_plan(trainer: Trainer, module: ClassifierModule, shape: StepShape, batch: Batch) -> None:
    """Put the plan in force under which a captured step of this shape is fastest; nothing with other strategies.

    Weights, averages and random numbers change, as in any warm-up. No graph is left: those of the plans that were
    given up would write to buckets that are gone.

    Args:
        shape: At which plans are compared; the plan serves the other shapes too.
        batch: A micro-batch of it.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, AcceleratedDDPStrategy):
        return

    def measure(plan: CommPlan) -> float:
        seconds = math.inf

        def work(train_step: Any) -> None:
            nonlocal seconds
            try:
                seconds = module.step_runner.capture(shape, batch.images_nhwc, batch.labels)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                # A plan that cannot be captured loses; where stock DDP cannot either, the warm-up says why.
                seconds = math.inf

        strategy.training_step(work, 0)
        module.step_runner.forget_captures()
        return slowest_rank_s(seconds, module.device, None)

    strategy.choose_captured(measure)
