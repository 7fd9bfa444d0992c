"""The Lightning module: one optimizer step, one validation step, and what is kept between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from fasttrain.data.batch import COMPUTE_DTYPES, Batch
from fasttrain.optimizer.build import build_optimizer, set_hyperparameters
from fasttrain.strategy.accelerated import AcceleratedDDPStrategy
from fasttrain.trainer.compiled import compiled_graphs
from fasttrain.trainer.epoch_steps import EpochSteps, seed_epoch
from fasttrain.trainer.meters import RATE_SKIP_STEPS, LossMeter, RateMeter
from fasttrain.trainer.mid_epoch import (
    MidEpochState,
    gather_state,
    mean_loss_state,
    read_state,
    restore_random_numbers,
)
from fasttrain.trainer.mixing import draw_mix
from fasttrain.trainer.ranks import check_equal
from fasttrain.trainer.step import StepRunner
from fasttrain.trainer.validated_module import ValidatedModule

log = logging.getLogger("fasttrain")


# How long Lightning is left waiting: signals and callbacks act at least this often.
MAX_STEPS_TOGETHER, SECONDS_TOGETHER = 50, 0.5

# Where a network's weights are in Lightning's state dict.
NETWORK, AVERAGED = "objective.network.", "average.network."


@dataclass(frozen=True)
class WarmedUp:
    """What the warm-up took.

    Attributes:
        seconds: Of it.
        graphs: Compiled in it.
        from_cache: Of these, found in the compiler's cache.
        total_graphs: Compiled by this process up to its end.
    """

    seconds: float
    graphs: int
    from_cache: int
    total_graphs: int


class ClassifierModule(ValidatedModule):
    """Trains one network by a plan; Lightning drives it.

    Owns the objective (network, normalisation, loss) and the meters. One Lightning batch is one or several
    optimizer steps, at most MAX_STEPS_TOGETHER or about SECONDS_TOGETHER; signals, callbacks and loggers are served
    at its end. Epochs, steps, learning rate and momentum come from ``plan`` and ``schedule`` at ``step``; nothing
    here counts them a second time.

    Attributes:
        steps_together: Steps in one Lightning batch, by stage.
        warmed_up: What the warm-up took; None before it.
        why_not_captured: What stands against captured steps; None where they are, and before the warm-up.
    """

    def __init__(self, *arguments: Any, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.automatic_optimization = False
        self.steps_together: dict[int, int] = {}
        self.warmed_up: WarmedUp | None = None
        self.why_not_captured: str | None = None
        self._rate_first_step: int | None = None
        self._resumed: MidEpochState | None = None

    @property
    def step_shape(self) -> int:
        """What decides how long a step takes, for a strategy that compares steps: the stage."""
        return self.epoch_plan.stage

    @property
    def steps_left(self) -> int:
        """Steps that are still to be trained, for a strategy that spends some of them on comparisons."""
        return self.plan.total_steps - self.step

    # --- what Lightning asks for ---

    def configure_optimizers(self) -> Optimizer:
        return build_optimizer(self.config, self.network)

    def train_dataloader(self) -> EpochSteps:
        epoch = self.epoch_plan
        return EpochSteps(
            self.data_path,
            epoch,
            first=self.step - epoch.first_step,
            together=self.steps_together.get(epoch.stage, 1),
        )

    def val_dataloader(self) -> Any:
        epoch = self.epoch_plan
        return self.data_path.val_batches(epoch.val_px, rectangular=epoch.rectangular_val)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        # The data path hands over batches that already lie on the device.
        return batch

    # --- training ---

    def on_fit_start(self) -> None:
        # After a resume has set the step, before the warm-up trains together.
        check_equal(
            {
                "step to start from": self.step,
                "steps": self.plan.total_steps,
                "epochs": len(self.plan.epochs),
                "training images": self.plan.num_train,
                "validation images": self.num_val,
                "seed": self.config.seed,
            },
            self.trainer.world_size,
            self.device,
        )
        precision = self.config.trainer.precision
        self.step_runner = StepRunner(
            self.objective,
            self.trainer.optimizers[0],
            strategy=self.trainer.strategy,
            precision=COMPUTE_DTYPES[precision],
            scaler=getattr(self.trainer.precision_plugin, "scaler", None),
            clip_norm=self.config.optimizer.clip_norm,
            moving_momentum=self.config.schedule.momentum is not None,
            device=self.device,
        )

    def on_train_start(self) -> None:
        self.loss_meter = LossMeter(self.device)

    def on_train_epoch_start(self) -> None:
        epoch = self.epoch_plan
        self.loss_meter.start_epoch()
        self.rate_meter = RateMeter(self.device)
        self.step_runner.skipped.zero_()
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
        ranks, world_size, rank = state["ranks"], self.trainer.world_size, self.trainer.global_rank
        same_ranks = len(ranks) == world_size
        self.loss_meter.load_state_dict(ranks[rank]["loss"] if same_ranks else mean_loss_state(ranks))
        self.step_runner.skipped.fill_(state["skipped_steps"])
        # A part of an epoch has no images/s of its own.
        self._rate_first_step = None
        restore_random_numbers(
            state,
            rank=rank,
            world_size=world_size,
            device=self.device,
            seed=self.config.seed,
            epoch=self.epoch_plan.recipe_epoch,
            step=self.step,
        )

    def training_step(self, work: Callable[[Callable[[list[Batch]], None]], None], batch_idx: int) -> None:
        work(self.train_step)

    def train_step(self, micro_batches: list[Batch]) -> None:
        """One optimizer step."""
        epoch = self.epoch_plan
        set_hyperparameters(
            self.step_runner.optimizer,
            lr=self.schedule.lr(self.step),
            momentum=self.schedule.momentum(self.step),
            epochs_done=self.plan.epochs_done(self.step),
        )
        self._before_update()
        self.loss_meter.add(self.step_runner.run(micro_batches))
        self._after_update()
        # Lightning counts what goes through its own optimizers: its global_step is this count.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()
        self.step += 1
        in_epoch = self.step - epoch.first_step
        if in_epoch == self._rate_first_step and in_epoch < epoch.steps:
            self.rate_meter.start()
        if in_epoch % self.config.trainer.log_every_steps == 0 or in_epoch == epoch.steps:
            self.check_loss()

    def _before_update(self) -> None:
        """Put what changes from step to step on the device, without a host sync."""
        mixing = self.objective.mixing
        if mixing is not None:
            epoch = self.epoch_plan
            step = self.step - epoch.first_step
            mixing.set(draw_mix(mixing.config, seed=self.config.seed, epoch=epoch.recipe_epoch, step=step, px=epoch.px))

    def _after_update(self) -> None:
        """What follows the optimizer's update number ``step``, before it is counted; without a host sync."""
        if self.average is not None and self.average.follow(self.step):
            self.average.update()

    def check_loss(self) -> None:
        """Look at the loss on the device; ends the run when it has diverged."""
        self.loss_meter.check(
            step=self.step,
            lr=self.schedule.lr(self.step - 1),
            peak_lr=self.config.optimizer.lr,
            px=self.epoch_plan.px,
            scale=self.step_runner.loss_scale(),
        )

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        epoch = self.epoch_plan
        if self.step == epoch.first_step + epoch.steps and self._rate_first_step is not None:
            self.rate_meter.stop((epoch.steps - self._rate_first_step) * epoch.batch_size)
        if self.step == epoch.first_step + epoch.steps and not self.validates(epoch):
            self.check_weights()
            self.last_epoch = self._epoch_result(None)

    # --- what the report says of the step ---

    def step_notes(self) -> dict[str, str]:
        """How steps were run, label to text; a graph compiled after the clock started is said aloud."""
        notes = {"captured_step": "yes" if self.step_runner.captured else f"no: {self.why_not_captured}"}
        strategy = self.trainer.strategy
        if isinstance(strategy, AcceleratedDDPStrategy) and strategy.session is not None:
            notes["communication"] = strategy.session.describe()
        if self.warmed_up is not None and self.config.trainer.compile:
            did = self.warmed_up
            late = compiled_graphs() - did.total_graphs
            notes["compiled_graphs"] = (
                f"{did.graphs} in the warm-up ({did.from_cache} found in the compiler's cache), which took "
                f"{did.seconds:.1f} s; {late} later"
            )
            if late:
                log.warning("%d graphs were compiled after the clock had started", late)
        return notes

    # --- checkpoints ---

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        whole = checkpoint["state_dict"]
        checkpoint["state_dict"] = _of_network(whole, NETWORK)
        if self.average is not None:
            # Until the average begins it is the trained network. The key is the one that timm looks for first.
            source = AVERAGED if self.average.begun(self.step) else NETWORK
            checkpoint["state_dict_ema"] = _of_network(whole, source)
        # All ranks come here, though rank 0 alone writes.
        checkpoint["fasttrain_epoch_state"] = gather_state(
            self.loss_meter,
            int(self.step_runner.skipped),
            world_size=self.trainer.world_size,
            device=self.device,
        )

    def resume_at(self, step: int, epoch_state: Mapping[str, Any]) -> None:
        """Continue after ``step`` updates; inside an epoch its meters and random numbers go on too."""
        self.step = step
        if step < self.plan.total_steps and step > self.plan.epoch_at(step).first_step:
            self._resumed = read_state(epoch_state)


def _of_network(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """A network's part of the module's state, under the network's own names."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
