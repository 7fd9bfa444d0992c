"""Run every shape once before the clock starts, and leave no trace of it."""

from __future__ import annotations

import copy
import logging
import time
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from fasttrain.data.batch import Batch
from fasttrain.errors import MachineError, Problem
from fasttrain.stages import EpochPlan
from fasttrain.trainer.captured_tuning import choose_captured_plan
from fasttrain.trainer.compiled import compiled_graphs, explain_failed_compilation, graphs_from_cache
from fasttrain.trainer.meters import LossMeter
from fasttrain.trainer.module import MAX_STEPS_TOGETHER, SECONDS_TOGETHER, ClassifierModule, WarmedUp
from fasttrain.trainer.ranks import any_rank, smallest
from fasttrain.trainer.step import StepShape

log = logging.getLogger("fasttrain")

# Uncaptured steps of each shape: the first compiles and fills caches, the later ones let the kernels settle.
STEPS = {"cuda": 3, "cpu": 1}


class WarmUp(Callback):
    """Trains on random pixels at each stage's shape when training starts, then restores everything.

    On a GPU each shape's step is captured here as CUDA graphs (``trainer.capture``). Weights, buffers, gradients,
    optimizer, loss scaler, random numbers and Lightning's step counter are as before, so the run equals one without
    warm-up. Compilation, cuDNN's choice of kernels and a lack of memory show here and not in the last stage. On a
    GPU the shapes of the validation run once too.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ClassifierModule)
        device = pl_module.device
        before, started = Snapshot(trainer, pl_module), time.monotonic()
        graphs, from_cache = compiled_graphs(), graphs_from_cache()
        pl_module.loss_meter = LossMeter(device)
        announce(pl_module)
        captures = wants_capture(pl_module)
        try:
            if captures:
                # Between captured steps nothing can be exchanged any more: their graphs hold DDP's buckets.
                shape = next(iter(shapes_ahead(pl_module)))
                with (
                    explain_failed_compilation(),
                    explain_out_of_memory("training", shape.px, shape.size // pl_module.objective.num_views),
                ):
                    choose_captured_plan(trainer, pl_module, shape, training_batch(pl_module, shape))
            for shape, stages in shapes_ahead(pl_module).items():
                with (
                    explain_failed_compilation(),
                    explain_out_of_memory("training", shape.px, shape.size // pl_module.objective.num_views),
                ):
                    if captures:
                        captures = capture(trainer, pl_module, shape, stages)
                    if not captures:
                        train_uncaptured(trainer, pl_module, shape)
            if device.type == "cuda":
                self._validation_shapes(trainer, pl_module)
        finally:
            before.restore(trainer, pl_module)
        # Lightning has counted the first epoch's batches already, before it was known how many steps make up one.
        trainer.fit_loop._last_train_dl_reload_epoch = float("-inf")
        pl_module.warmed_up = WarmedUp(
            seconds=time.monotonic() - started,
            graphs=compiled_graphs() - graphs,
            from_cache=graphs_from_cache() - from_cache,
            total_graphs=compiled_graphs(),
        )

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
                    images = random_batch(module, size, height, width).images_nhwc
                    module.network(module.objective.normalize(images))
        module.train()


def announce(module: ClassifierModule) -> None:
    """Say what is about to take a while, and that a CPU may not be made for the run's precision."""
    if not module.trainer.is_global_zero:
        return
    shapes = ", ".join(f"{shape.px} px x {shape.size}" for shape in shapes_ahead(module))
    log.info(f"warm-up on random pixels, before the clock starts: {shapes}")
    if module.device.type == "cpu" and module.config.trainer.precision == "bf16":
        log.warning("trainer.precision=bf16 is many times slower than fp32 on most CPUs: trainer.precision=fp32")


def shapes_ahead(module: ClassifierModule) -> dict[StepShape, list[int]]:
    """The shapes of the steps that are left, in order of use, each with its stages."""
    plan = module.plan
    shapes: dict[StepShape, list[int]] = {}
    for epoch in plan.epochs:
        if epoch.first_step + epoch.steps > module.step:
            stages = shapes.setdefault(step_shape(module, epoch), [])
            if epoch.stage not in stages:
                stages.append(epoch.stage)
    return shapes


def step_shape(module: ClassifierModule, epoch: EpochPlan) -> StepShape:
    """The shape of an epoch's steps on this rank."""
    size = module.plan.micro_batch(epoch) * module.objective.num_views
    return StepShape(epoch.px, size, epoch.accumulate, module.data_path.train_dtype(epoch.px))


def wants_capture(module: ClassifierModule) -> bool:
    """Whether steps are to be captured; says once why not.

    Raises:
        MachineError: ``trainer.capture=true``, and something stands against it.
    """
    wanted = module.config.trainer.capture
    if wanted == "false":
        module.why_not_captured = "trainer.capture=false"
        return False
    reason = module.step_runner.why_not_captured()
    if reason is None:
        return True
    not_captured(module, reason)
    return False


def not_captured(module: ClassifierModule, reason: str) -> None:
    """Say why steps are not captured: an error where that was demanded, a line of the log otherwise.

    Raises:
        MachineError: ``trainer.capture=true``.
    """
    module.why_not_captured = reason
    if module.config.trainer.capture == "true":
        raise MachineError(Problem(f"trainer.capture=true: {reason}", "trainer.capture=auto"))
    if module.device.type == "cuda" and module.trainer.is_global_zero:
        log.info("trainer.capture=auto: steps are not captured: %s", reason)


def capture(trainer: Trainer, module: ClassifierModule, shape: StepShape, stages: list[int]) -> bool:
    """Capture a shape on every rank, or on none; returns whether it is."""
    step = module.step_runner
    failure: str | None = None

    def work(train_step: Any) -> None:
        nonlocal failure
        batch = training_batch(module, shape)
        try:
            seconds = step.capture(shape, batch.images_nhwc, batch.labels)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            failure = " ".join(str(error).split())[:300]
        else:
            for stage in stages:
                module.steps_together[stage] = steps_together(seconds)

    trainer.strategy.training_step(work, 0)
    ranks = (trainer.world_size, module.device)
    # Lightning's batches end at the same steps on all ranks.
    together = smallest([module.steps_together.get(stage, 1) for stage in stages], *ranks)
    module.steps_together.update(zip(stages, together, strict=True))
    if any_rank(failure is not None, *ranks):
        step.forget_captures()
        module.steps_together.clear()
        not_captured(module, failure or "another rank could not")
        return False
    return True


def steps_together(seconds: float) -> int:
    """Steps of this length that make up one Lightning batch."""
    return max(1, min(MAX_STEPS_TOGETHER, int(SECONDS_TOGETHER / seconds)))


def train_uncaptured(trainer: Trainer, module: ClassifierModule, shape: StepShape) -> None:
    """A few steps of one micro-batch each."""
    step = module.step

    def work(train_step: Any) -> None:
        module.step = step
        train_step([training_batch(module, shape)])

    for _ in range(STEPS[module.device.type]):
        trainer.strategy.training_step(work, 0)


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


def training_batch(module: ClassifierModule, shape: StepShape) -> Batch:
    """A random micro-batch of a shape, all views of its images."""
    return random_batch(module, shape.size, shape.px, shape.px, dtype=shape.dtype)


def random_batch(
    module: ClassifierModule, size: int, height: int, width: int, *, dtype: torch.dtype = torch.uint8
) -> Batch:
    """A batch of random pixels and labels on the module's device; floating point: as if normalised."""
    device, shape = module.device, (size, height, width, 3)
    if dtype == torch.uint8:
        images = torch.randint(0, 256, shape, dtype=dtype, device=device)
    else:
        images = torch.randn(shape, dtype=dtype, device=device)
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
        if module.step_runner.captured:
            # The graphs' gradients stay theirs, and the averages that they change stay where they are.
            restore_in_place(trainer.optimizers[0], self.optimizer)
        else:
            trainer.optimizers[0].load_state_dict(self.optimizer)
        trainer.optimizers[0].zero_grad(set_to_none=True)
        module.step_runner.skipped.zero_()
        trainer.precision_plugin.load_state_dict(self.precision)
        progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.load_state_dict(self.progress)
        torch.set_rng_state(self.rng)
        if self.rng_cuda is not None:
            torch.cuda.set_rng_state(self.rng_cuda, module.device)


def restore_in_place(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give an optimizer's tensors their saved values without moving them.

    An average that did not exist becomes zero, which is where each optimizer that can be captured starts it.

    Args:
        optimizer: Whose steps are captured.
        saved: Its ``state_dict()`` from before, copied.
    """
    index = 0
    for group, before in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                value.fill_(float(before[key]))
        for parameter in group["params"]:
            old = saved["state"].get(index, {})
            for key, value in optimizer.state.get(parameter, {}).items():
                value.copy_(old[key]) if key in old else value.zero_()
            index += 1
