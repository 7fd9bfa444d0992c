"""Run every shape once before the clock starts, and leave no trace of it."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from fasttrain.data.batch import Batch
from fasttrain.errors import MachineError, Problem
from fasttrain.trainer.meters import LossMeter
from fasttrain.trainer.module import ClassifierModule

log = logging.getLogger("fasttrain")

# Steps of each shape: the first compiles and fills caches, the later ones let the kernels settle.
STEPS = {"cuda": 3, "cpu": 1}


class WarmUp(Callback):
    """Trains on random pixels at each stage's shape when training starts, then restores everything.

    Weights, buffers, gradients, optimizer, loss scaler, random numbers and Lightning's step counter are as
    before, so the run equals one without warm-up. Compilation, cuDNN's choice of kernels and a lack of memory
    show here and not in the last stage. On a GPU the shapes of the validation run once too.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ClassifierModule)
        plan, device = pl_module.plan, pl_module.device
        before = Snapshot(trainer, pl_module)
        pl_module.loss_meter = LossMeter(device)
        remaining = [e for e in plan.epochs if e.first_step + e.steps > pl_module.step]
        try:
            for px, size in dict.fromkeys((e.px, plan.micro_batch(e)) for e in remaining):
                with explain_out_of_memory("training", px, size):
                    for _ in range(STEPS[device.type]):
                        pl_module.step = before.step
                        trainer.strategy.training_step([random_batch(pl_module, size * pl_module.num_views, px, px)], 0)
            if device.type == "cuda":
                self._validation_shapes(trainer, pl_module)
        finally:
            before.restore(trainer, pl_module)

    @staticmethod
    def _validation_shapes(trainer: Trainer, module: ClassifierModule) -> None:
        shapes = dict.fromkeys(
            shape
            for px, rectangular in dict.fromkeys((e.val_px, e.rectangular_val) for e in module.plan.epochs)
            for shape in module.data_path.val_shapes(px, rectangular=rectangular)
        )
        module.eval()
        precision = trainer.precision_plugin
        with torch.no_grad(), precision.val_step_context():
            for size, height, width in shapes:
                with explain_out_of_memory("validation", max(height, width), size):
                    module.network.forward(module.normalize(random_batch(module, size, height, width).images_nhwc))
        module.train()


class explain_out_of_memory:  # noqa: N801 - a context manager reads as a verb
    """Turns a device's out-of-memory error into one that names the stage's shape and a size that may fit."""

    def __init__(self, what: str, px: int, size: int) -> None:
        self.what, self.px, self.size = what, px, size

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise MachineError(
                Problem(
                    f"{self.what} at {self.px} px with {self.size} images on one device does not fit its memory",
                    f"trainer.device_batch_size={max(1, self.size // 2)}",
                )
            ) from error


def random_batch(module: ClassifierModule, size: int, height: int, width: int) -> Batch:
    """A batch of random pixels and labels on the module's device."""
    device = module.device
    images = torch.randint(0, 256, (size, height, width, 3), dtype=torch.uint8, device=device)
    labels = torch.randint(0, module.num_classes, (size,), device=device)
    return Batch(images_nhwc=images, labels=labels, num_valid=size)


class Snapshot:
    """All state that a training step changes, kept aside."""

    def __init__(self, trainer: Trainer, module: ClassifierModule) -> None:
        self.step = module.step
        self.weights = {key: value.detach().clone() for key, value in module.network.state_dict().items()}
        average = module.average
        self.average = copy.deepcopy(average.state_dict()) if average is not None else None
        self.optimizer = copy.deepcopy(trainer.optimizers[0].state_dict())
        self.precision = copy.deepcopy(trainer.precision_plugin.state_dict())
        progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        self.progress = copy.deepcopy(progress.state_dict())
        self.rng = torch.get_rng_state()
        self.rng_cuda = torch.cuda.get_rng_state(module.device) if module.device.type == "cuda" else None

    def restore(self, trainer: Trainer, module: ClassifierModule) -> None:
        """Put it all back, in place."""
        module.step = self.step
        module.network.load_state_dict(self.weights)
        if module.average is not None and self.average is not None:
            module.average.load_state_dict(self.average)
        for parameter in module.network.parameters():
            parameter.grad = None
        trainer.optimizers[0].load_state_dict(self.optimizer)
        trainer.precision_plugin.load_state_dict(self.precision)
        progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.load_state_dict(self.progress)
        torch.set_rng_state(self.rng)
        if self.rng_cuda is not None:
            torch.cuda.set_rng_state(self.rng_cuda, module.device)
