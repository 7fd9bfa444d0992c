"""The part of the Lightning module that validates, and what an epoch gave."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import islice
from typing import Any, cast

import torch
from pytorch_lightning import LightningModule
from torch import nn

from fasttrain.config.schema import RunConfig
from fasttrain.data.batch import Batch
from fasttrain.data.path import DataPath
from fasttrain.errors import FasttrainError, Problem, TrainingError
from fasttrain.model.recalibrate import recalibrate
from fasttrain.schedule.schedule import Schedule
from fasttrain.stages import EpochPlan, Plan
from fasttrain.trainer.accuracy import Accuracies, Validation, accuracies
from fasttrain.trainer.averaging import WeightAverage
from fasttrain.trainer.meters import LossMeter, RateMeter
from fasttrain.trainer.objective import Objective
from fasttrain.trainer.ranks import take_from_first
from fasttrain.trainer.results import MIN_CLASSES_FOR_TOP5, EpochResult
from fasttrain.trainer.step import StepRunner
from fasttrain.trainer.views import NONE


class ValidatedModule(LightningModule):
    """Owns what is validated and counts it; ``ClassifierModule`` adds the training.

    Attributes:
        step: Optimizer steps completed, equal to Lightning's ``global_step``.
        step_runner: How a step is run; set when Lightning has built optimizer and strategy.
        average: The averaged weights, whose accuracy counts; None where they are not asked for.
        last_epoch: What the newest epoch gave; None before the end of the first.
        loss_meter, rate_meter: Of the running epoch.
    """

    step_runner: StepRunner
    loss_meter: LossMeter
    rate_meter: RateMeter

    def __init__(
        self,
        config: RunConfig,
        objective: Objective,
        plan: Plan,
        schedule: Schedule,
        data: DataPath,
        *,
        num_val: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.config = config
        self.objective = objective
        self.plan = plan
        self.schedule = schedule
        self.data_path = data
        self.num_val = num_val
        self.num_classes = num_classes
        averaging = config.trainer.averaging
        self.average = WeightAverage(self.network, averaging, plan) if averaging.kind != "none" else None
        self.step = 0
        self.last_epoch: EpochResult | None = None

    @property
    def network(self) -> nn.Module:
        """The network that is trained."""
        return self.objective.network

    @property
    def epoch_plan(self) -> EpochPlan:
        """The row of the plan that is being trained."""
        return self.plan.epochs[self.trainer.current_epoch]

    def validates(self, epoch: EpochPlan) -> bool:
        """Whether the epoch is followed by a validation."""
        every = self.config.trainer.validate_every_epochs
        number = epoch.epoch + 1
        return number == len(self.plan.epochs) or (every is not None and number % every == 0)

    def check_weights(self) -> None:
        """See that training left numbers behind (a host sync), before they are validated and saved.

        Raises:
            TrainingError: A weight is infinite or not a number.
        """
        norms = torch._foreach_norm([parameter.detach() for parameter in self.network.parameters()])
        if not bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all()):
            epoch, lr = self.epoch_plan, self.schedule.lr(max(0, self.step - 1))
            raise TrainingError(
                Problem(
                    f"weights are no longer finite after epoch {epoch.epoch + 1}, step {self.step} "
                    f"(lr {lr:.4g}, {epoch.px} px); the checkpoints written before are intact",
                    f"a lower optimizer.lr (half: optimizer.lr={self.config.optimizer.lr / 2:.3g}), a longer "
                    "schedule.warmup_epochs, or optimizer.clip_norm=1.0",
                )
            )

    def on_validation_model_eval(self) -> None:
        super().on_validation_model_eval()
        # Here and not later: the clock stands still from on_validation_start, and this is a part of training.
        if self.config.model.batchnorm.recalibrate_images > 0:
            self.recalibrate()

    @property
    def networks(self) -> list[nn.Module]:
        """The networks that are validated: the one that is trained, and the average where it is another one."""
        average = self.average
        return [self.network, average.network] if average is not None and average.begun(self.step) else [self.network]

    def recalibrate(self) -> None:
        """Take BatchNorm's running statistics anew, over the first images of the epoch as they were trained on."""
        epoch = self.epoch_plan
        num_steps = min(epoch.steps, math.ceil(self.config.model.batchnorm.recalibrate_images / epoch.batch_size))
        steps = islice(self.data_path.train_epoch(epoch), num_steps)
        normalize = self.objective.normalize
        batches = (normalize(batch.images_nhwc) for micro_batches in steps for batch in micro_batches)
        with self.trainer.precision_plugin.val_step_context():
            recalibrate(self.networks, batches, world_size=self.trainer.world_size)

    def on_validation_start(self) -> None:
        self.check_weights()
        self.validation = Validation(self.networks, self.config.trainer.test_time_augmentation, self.device)
        self.share_buffers()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.validation.add(self.objective.normalize(batch.images_nhwc), batch.labels, batch.num_valid)

    def on_validation_epoch_end(self) -> None:
        counts = self.trainer.strategy.reduce(self.validation.counts(), reduce_op="sum")
        found = accuracies(cast(torch.Tensor, counts))
        num_val = found.counting.num_val
        if num_val != self.num_val:
            raise FasttrainError(
                f"validation counted {num_val} images over all ranks, but the set has {self.num_val}; "
                "the accuracy would be wrong"
            )
        self.last_epoch = self._epoch_result(found)

    def _epoch_result(self, found: Accuracies | None) -> EpochResult:
        """What the epoch gave, its accuracies where it was validated."""
        epoch = self.epoch_plan
        loss = self.loss_meter.total / max(1, self.loss_meter.steps)
        mean_loss = float(cast(torch.Tensor, self.trainer.strategy.reduce(loss, reduce_op="mean")))
        return EpochResult(
            epoch=epoch.epoch + 1,
            step=self.step,
            train_loss=mean_loss,
            **self._accuracy_fields(found),
            lr=self.schedule.lr(self.step - 1),
            momentum=self.schedule.momentum(self.step - 1),
            px=epoch.px,
            batch_size=epoch.batch_size,
            images=epoch.steps * epoch.batch_size,
            stage=epoch.stage,
            skipped_steps=int(self.step_runner.skipped),
            rate_images=self.rate_meter.images,
            rate_seconds=self.rate_meter.seconds,
        )

    def _accuracy_fields(self, found: Accuracies | None) -> dict[str, Any]:
        """The fields of ``EpochResult`` about accuracy."""
        if found is None:
            return {"top1": None, "top5": None, "correct1": 0, "correct5": 0, "num_val": 0}
        counting = found.counting
        fields: dict[str, Any] = {"top1": counting.top1, "top5": counting.top5, **asdict(counting)}
        if self.average is not None:
            fields |= {"raw_top1": found.raw.top1, "raw_top5": found.raw.top5}
        if self.config.trainer.test_time_augmentation != NONE:
            fields["plain_top1"] = found.plain.top1
        if self.num_classes < MIN_CLASSES_FOR_TOP5:
            fields |= {key: None for key in ("top5", "raw_top5") if key in fields}
        return fields

    def share_buffers(self) -> None:
        """Copy rank 0's buffers (BatchNorm's running statistics) to all ranks, as stock DDP does."""
        buffers = (buffer for network in self.networks for buffer in network.buffers())
        take_from_first(buffers, self.trainer.world_size)

    def share_weights(self) -> None:
        """Copy rank 0's weights to all ranks, as DDP does when it is built."""
        weights = (parameter.detach() for parameter in self.network.parameters())
        take_from_first(weights, self.trainer.world_size)
