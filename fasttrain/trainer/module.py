"""The Lightning module: one optimizer step, one validation step, and what is kept between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypedDict, cast

import torch
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fasttrain.config.schema import RunConfig
from fasttrain.data.batch import Batch
from fasttrain.data.path import DataPath
from fasttrain.data.preprocess import Normalize
from fasttrain.errors import FasttrainError, Problem, TrainingError
from fasttrain.optimizer.build import build_optimizer, set_hyperparameters
from fasttrain.schedule.schedule import Schedule
from fasttrain.stages import EpochPlan, Plan
from fasttrain.trainer.epoch_steps import EpochSteps, seed_epoch
from fasttrain.trainer.meters import RATE_SKIP_STEPS, AccuracyMeter, LossMeter, RateMeter
from fasttrain.trainer.results import MIN_CLASSES_FOR_TOP5, EpochResult
from fasttrain.trainer.views import NONE, predict


class MidEpochState(TypedDict):
    """What an epoch that was left in its middle needs to go on."""

    loss: dict[str, float | int]
    skipped_steps: int
    rng: torch.Tensor
    rng_cuda: torch.Tensor | None


class ClassifierModule(LightningModule):
    """Trains one network by a plan; Lightning drives it.

    Owns the network, the normalisation in front of it, and the meters. One Lightning batch is one optimizer
    step: the list of micro-batches that this rank accumulates. Epochs, steps, learning rate and momentum
    come from ``plan`` and ``schedule`` at ``step``; nothing here counts them a second time.

    Attributes:
        step: Optimizer steps completed, equal to Lightning's ``global_step``.
        last_epoch: What the newest epoch gave; None before the end of the first.
    """

    def __init__(
        self,
        config: RunConfig,
        network: nn.Module,
        normalize: Normalize,
        plan: Plan,
        schedule: Schedule,
        data: DataPath,
        *,
        num_val: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.network = network
        self.normalize = normalize
        self.plan = plan
        self.schedule = schedule
        self.data_path = data
        self.num_val = num_val
        self.num_classes = num_classes
        self.step = 0
        self.last_epoch: EpochResult | None = None
        self._skipped_steps = 0
        self._rate_first_step: int | None = None
        self._resumed: MidEpochState | None = None

    @property
    def epoch_plan(self) -> EpochPlan:
        """The row of the plan that is being trained."""
        return self.plan.epochs[self.trainer.current_epoch]

    # --- what Lightning asks for ---

    def configure_optimizers(self) -> Optimizer:
        return build_optimizer(self.config, self.network)

    def train_dataloader(self) -> EpochSteps:
        epoch = self.epoch_plan
        return EpochSteps(self.data_path, epoch, first=self.step - epoch.first_step)

    def val_dataloader(self) -> Any:
        epoch = self.epoch_plan
        return self.data_path.val_batches(epoch.val_px, rectangular=epoch.rectangular_val)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        # The data path hands over batches that already lie on the device.
        return batch

    # --- training ---

    def on_fit_start(self) -> None:
        # After a resume has set the step, before the warm-up trains together.
        self.check_ranks_agree()

    def on_train_start(self) -> None:
        self.loss_meter = LossMeter(self.device)

    def check_ranks_agree(self) -> None:
        """See that all ranks stand at the same step of the same plan: ranks that do not would wait for ever.

        Raises:
            TrainingError: They do not.
        """
        if self.trainer.world_size == 1:
            return
        plan = self.plan
        own = [self.step, plan.total_steps, len(plan.epochs), plan.num_train, self.num_val, self.config.seed]
        mine = torch.tensor(own, device=self.device)
        low, high = mine.clone(), mine.clone()
        torch.distributed.all_reduce(low, op=torch.distributed.ReduceOp.MIN)
        torch.distributed.all_reduce(high, op=torch.distributed.ReduceOp.MAX)
        names = ("step to start from", "steps", "epochs", "training images", "validation images", "seed")
        differ = [
            f"{name}: {a} to {b}" for name, a, b in zip(names, low.tolist(), high.tolist(), strict=True) if a != b
        ]
        if differ:
            raise TrainingError(
                Problem(
                    "the ranks are not in the same run: they differ in " + ", ".join(differ),
                    "start every rank with the same command, over the same data and run_dir",
                )
            )

    def on_train_epoch_start(self) -> None:
        epoch = self.epoch_plan
        self.loss_meter.start_epoch()
        self.rate_meter = RateMeter(self.device)
        self._skipped_steps = 0
        self._rate_first_step = RATE_SKIP_STEPS
        seed_epoch(self.config.seed, epoch.recipe_epoch, self.trainer.global_rank)
        # Lightning asks at the epoch's last step, and knows no validation after the last epoch whatever its number.
        self.trainer.check_val_every_n_epoch = 1 if self.validates(epoch) else len(self.plan.epochs) + 1
        if self._resumed is not None:
            self._continue_epoch(self._resumed)
            self._resumed = None
        elif epoch.epoch > 0 and self.plan.epochs[epoch.epoch - 1].stage == epoch.stage:
            self._rate_first_step = 0
            self.rate_meter.start()

    def _continue_epoch(self, state: MidEpochState) -> None:
        self.loss_meter.load_state_dict(state["loss"])
        self._skipped_steps = state["skipped_steps"]
        # A part of an epoch has no images/s of its own.
        self._rate_first_step = None
        if self.trainer.is_global_zero:
            torch.set_rng_state(state["rng"])
            if self.device.type == "cuda" and state["rng_cuda"] is not None:
                torch.cuda.set_rng_state(state["rng_cuda"], self.device)

    def training_step(self, micro_batches: list[Batch], batch_idx: int) -> None:
        optimizer = self.optimizers()
        epoch = self.epoch_plan
        set_hyperparameters(
            cast(Optimizer, optimizer),
            lr=self.schedule.lr(self.step),
            momentum=self.schedule.momentum(self.step),
            epochs_done=self.plan.epochs_done(self.step),
        )
        loss = self.accumulate(micro_batches)
        scale = self._loss_scale()
        optimizer.step()  # type: ignore[union-attr]
        if scale is not None and cast(float, self._loss_scale()) < scale:
            self._skipped_steps += 1
        optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        self.loss_meter.add(loss)
        self.step += 1
        in_epoch = self.step - epoch.first_step
        if in_epoch == self._rate_first_step and in_epoch < epoch.steps:
            self.rate_meter.start()
        if in_epoch % self.config.trainer.log_every_steps == 0 or in_epoch == epoch.steps:
            self.check_loss()

    def accumulate(self, micro_batches: list[Batch]) -> torch.Tensor:
        """Gradients of one optimizer step, the mean over its micro-batches and ranks; returns the loss."""
        total = torch.zeros((), device=self.device)
        last = len(micro_batches) - 1
        for k, batch in enumerate(micro_batches):
            loss = self.loss(batch) / len(micro_batches)
            with self._no_gradient_sync() if k < last else contextlib.nullcontext():
                self.manual_backward(loss)
            total += loss.detach()
        return total

    def loss(self, batch: Batch) -> torch.Tensor:
        """Cross-entropy of one micro-batch with label smoothing, in fp32."""
        logits = self.network(self.normalize(batch.images_nhwc))
        return F.cross_entropy(logits.float(), batch.labels, label_smoothing=self.config.trainer.label_smoothing)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # Lightning calls this with unscaled gradients, so that fp16 is clipped at its true norm.
        if self.config.optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.optimizer.clip_norm)

    def check_loss(self) -> None:
        """Look at the loss on the device; ends the run when it has diverged."""
        lr = self.schedule.lr(self.step - 1)
        self.loss_meter.check(step=self.step, lr=lr, px=self.epoch_plan.px, scale=self._loss_scale())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        epoch = self.epoch_plan
        if self.step == epoch.first_step + epoch.steps and self._rate_first_step is not None:
            self.rate_meter.stop((epoch.steps - self._rate_first_step) * epoch.batch_size)
        if self.step == epoch.first_step + epoch.steps and not self.validates(epoch):
            self.check_weights()
            self.last_epoch = self._epoch_result(None)

    @contextlib.contextmanager
    def _no_gradient_sync(self) -> Iterator[None]:
        wrapped = self.trainer.strategy.model
        if isinstance(wrapped, DistributedDataParallel):
            with wrapped.no_sync():
                yield
        else:
            yield

    def _loss_scale(self) -> float | None:
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return float(scaler.get_scale()) if scaler is not None else None

    # --- validation ---

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

    def on_validation_start(self) -> None:
        self.check_weights()
        self.accuracy_meter = AccuracyMeter(self.device)
        self.plain_meter = AccuracyMeter(self.device)
        self.share_buffers()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        # The plain forward: validation shapes are not worth a compilation each.
        kind = self.config.trainer.test_time_augmentation
        logits = predict(self.network.forward, self.normalize(batch.images_nhwc), kind)
        self.accuracy_meter.add(logits.counting, batch.labels, batch.num_valid)
        if kind != NONE:
            self.plain_meter.add(logits.plain, batch.labels, batch.num_valid)

    def on_validation_epoch_end(self) -> None:
        both = torch.stack([self.accuracy_meter.counts, self.plain_meter.counts])
        counts = cast(torch.Tensor, self.trainer.strategy.reduce(both, reduce_op="sum"))
        counting, plain = counts.tolist()
        num_val = counting[2]
        if num_val != self.num_val:
            raise FasttrainError(
                f"validation counted {num_val} images over all ranks, but the set has {self.num_val}; "
                "the accuracy would be wrong"
            )
        self.last_epoch = self._epoch_result(counting, plain)

    def _epoch_result(self, counting: list[int] | None, plain: list[int] | None = None) -> EpochResult:
        """What the epoch gave.

        Args:
            counting: Correct top-1 and top-5 answers and images of the validation; None without one.
            plain: The same without test-time augmentation; zeros where there is none.
        """
        epoch = self.epoch_plan
        loss = self.loss_meter.total / max(1, self.loss_meter.steps)
        mean_loss = float(cast(torch.Tensor, self.trainer.strategy.reduce(loss, reduce_op="mean")))
        has_top5 = self.num_classes >= MIN_CLASSES_FOR_TOP5
        correct1, correct5, num_val = counting or (0, 0, 0)
        return EpochResult(
            epoch=epoch.epoch + 1,
            step=self.step,
            train_loss=mean_loss,
            top1=100 * correct1 / num_val if num_val else None,
            top5=100 * correct5 / num_val if num_val and has_top5 else None,
            plain_top1=100 * plain[0] / plain[2] if plain and plain[2] else None,
            correct1=correct1,
            correct5=correct5,
            num_val=num_val,
            lr=self.schedule.lr(self.step - 1),
            momentum=self.schedule.momentum(self.step - 1),
            px=epoch.px,
            batch_size=epoch.batch_size,
            images=epoch.steps * epoch.batch_size,
            stage=epoch.stage,
            skipped_steps=self._skipped_steps,
            rate_images=self.rate_meter.images,
            rate_seconds=self.rate_meter.seconds,
        )

    def share_buffers(self) -> None:
        """Copy rank 0's buffers (BatchNorm's running statistics) to all ranks, as stock DDP does."""
        self._share(self.network.buffers())

    def share_weights(self) -> None:
        """Copy rank 0's weights to all ranks, as DDP does when it is built."""
        self._share(parameter.detach() for parameter in self.network.parameters())

    def _share(self, tensors: Iterable[torch.Tensor]) -> None:
        if self.trainer.world_size > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    # --- checkpoints ---

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = {
            key.removeprefix("network."): value
            for key, value in checkpoint["state_dict"].items()
            if key.startswith("network.")
        }
        checkpoint["fasttrain_epoch_state"] = MidEpochState(
            loss=self.loss_meter.state_dict(),
            skipped_steps=self._skipped_steps,
            rng=torch.get_rng_state(),
            rng_cuda=torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        )

    def resume_at(self, step: int, epoch_state: MidEpochState) -> None:
        """Continue after ``step`` updates; inside an epoch its meters and random numbers go on too."""
        self.step = step
        if step < self.plan.total_steps and step > self.plan.epoch_at(step).first_step:
            self._resumed = epoch_state
