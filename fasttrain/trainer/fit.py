"""Put the parts of a run together and let Lightning train."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.strategies import Strategy

from fasttrain.config.schema import RunConfig, TargetConfig
from fasttrain.strategy.world import World
from fasttrain.trainer.checkpoints import WholeFileIO
from fasttrain.trainer.module import ClassifierModule
from fasttrain.trainer.results import accuracy_of
from fasttrain.trainer.signals import StopSignals

PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

# What Lightning and torch warn of although this program does it on purpose.
EXPECTED_WARNINGS = (
    ".*does not have many workers.*",  # the data path has its own workers
    ".*number of training batches.*smaller than the logging interval.*",  # no Lightning logger is used
    ".*torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch.*",  # Lightning builds DDP on a side stream
    ".*isinstance.*LeafSpec.*deprecated.*",  # inside Lightning's batch handling
)


class SignalsOn(Callback):
    """Takes the signals over while steps are trained: Lightning sets its own just before."""

    def __init__(self, signals: StopSignals) -> None:
        self.signals = signals

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.install()
        self.signals.training = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.training = False


class StopAtTarget(Callback):
    """Ends the run after the epoch that reaches the target (``target.stop=true``)."""

    def __init__(self, target: TargetConfig) -> None:
        self.target = target

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ClassifierModule)
        result = pl_module.last_epoch
        accuracy = None if result is None else accuracy_of(result, self.target)
        if accuracy is not None and accuracy >= self.target.value:
            trainer.should_stop = True


def fit(
    module: ClassifierModule,
    *,
    config: RunConfig,
    world: World,
    accelerator: str,
    strategy: Strategy,
    callbacks: Sequence[Callback],
    progress_bar: bool,
) -> None:
    """Train the module to the end of its plan.

    Args:
        module: With its network on the CPU; it is moved to the device.
        accelerator: ``cpu`` or ``gpu``.
        callbacks: In the order in which they act.
        progress_bar: Whether a bar is drawn (on a terminal).
    """
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    module.train()
    bars = [RichProgressBar(refresh_rate=10)] if progress_bar else []
    trainer = Trainer(
        accelerator=accelerator,
        devices=world.local_size,
        num_nodes=world.num_nodes,
        strategy=strategy,
        precision=PRECISION[config.trainer.precision],  # type: ignore[arg-type]
        max_epochs=len(module.plan.epochs),
        callbacks=[*callbacks, *bars],
        plugins=[WholeFileIO()],
        deterministic=config.deterministic,
        benchmark=not config.deterministic,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=progress_bar,
        enable_model_summary=False,
    )
    # Lightning asks rank 0 for a signal at each batch and waits for the answer, which keeps the host from running
    # ahead of the device; the checkpoint callback asks all ranks every few steps instead.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    trainer.fit(module)
