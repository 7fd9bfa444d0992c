"""One optimizer step of one rank: forward, backward, update; as CUDA graphs where that works."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fasttrain.data.batch import Batch
from fasttrain.optimizer.build import hold_on_device
from fasttrain.optimizer.capturable import why_not_capturable
from fasttrain.strategy.capture import WARMUP_STEPS, WARMUP_STEPS_DDP, Part, StepGraphs, parts_of_step
from fasttrain.trainer.objective import Objective

log = logging.getLogger("fasttrain")

# Replays that are timed to say how many steps make up one Lightning batch.
TIMED_STEPS = 3


@dataclass(frozen=True)
class StepShape:
    """What a captured step is captured for.

    Attributes:
        px: Side of the images, pixels.
        size: Images of a micro-batch.
        accumulate: Micro-batches of a step.
        dtype: Of the images.
    """

    px: int
    size: int
    accumulate: int
    dtype: torch.dtype


class StepRunner:
    """Owns how a step is run: the precision, the gradients' reduction over ranks, the captured graphs.

    Captured and uncaptured steps are the same functions: a step is captured by recording them.

    Args:
        objective: Network and loss, on the device.
        optimizer: Over its parameters.
        strategy: Lightning's; a step runs inside its ``training_step``.
        precision: Of autocast; torch.float32 for none.
        scaler: Of the loss, for fp16.
        clip_norm: Largest norm of all gradients of a network; None for any.
        moving_momentum: The schedule changes the momentum.
        device: Of all of these.

    Attributes:
        loss: Mean loss of the newest step over its micro-batches, and over the networks of an ensemble, 0-dim float32.
        skipped: Updates that the loss scaler refused, 0-dim int64.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        strategy: Strategy,
        precision: torch.dtype,
        scaler: torch.amp.GradScaler | None,
        clip_norm: float | None,
        moving_momentum: bool,
        device: torch.device,
    ) -> None:
        self.objective, self.optimizer = objective, optimizer
        self.loss = torch.zeros((), device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._strategy, self._scaler, self._clip_norm = strategy, scaler, clip_norm
        self._moving_momentum = moving_momentum
        self._precision, self._device = precision, device
        self._parameters = list(objective.parameters())
        self._networks = [list(network.parameters()) for network in objective.networks]
        self._graphs: dict[StepShape, StepGraphs] = {}
        self._captured_bytes: dict[StepShape, int] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    # --- running ---

    def run(self, micro_batches: Sequence[Batch]) -> Tensor:
        """One optimizer step; returns ``loss``."""
        first = micro_batches[0].images_nhwc
        shape = StepShape(first.shape[1], len(first), len(micro_batches), first.dtype)
        graphs = self._graphs.get(shape)
        if graphs is not None:
            graphs.run([(batch.images_nhwc, batch.labels) for batch in micro_batches])
            return self.loss
        for part, batch in zip(parts_of_step(len(micro_batches)), micro_batches, strict=True):
            self._forward_backward((batch.images_nhwc, batch.labels), part, accumulate=len(micro_batches))
        self._update()
        self.optimizer.zero_grad(set_to_none=True)
        return self.loss

    def loss_scale(self) -> float | None:
        """The scaler's factor (a host sync); None without one."""
        return None if self._scaler is None else float(self._scaler.get_scale())

    @property
    def captured(self) -> bool:
        """Whether any shape is."""
        return bool(self._graphs)

    def captured_bytes(self, shape: StepShape) -> int | None:
        """Most memory that tensors took on the device while a shape's step was captured; None where it is not.

        A replay works in the graphs' own memory, which torch's statistics do not count.
        """
        return self._captured_bytes.get(shape)

    # --- capturing ---

    def why_not_captured(self) -> str | None:
        """What stands against a capture; None for nothing."""
        if self._device.type != "cuda":
            return "the step runs on the CPU"
        if isinstance(self._strategy, DDPStrategy) and torch.distributed.get_backend() != "nccl":
            return f"{torch.distributed.get_backend()} cannot be captured"
        return why_not_capturable(
            self.optimizer, scaling=self._scaler is not None, moving_momentum=self._moving_momentum
        )

    def capture(self, shape: StepShape, images_nhwc: Tensor, labels: Tensor) -> float:
        """Run a shape uncaptured, then capture it; changes weights, averages and random numbers.

        Args:
            shape: Which.
            images_nhwc, labels: A micro-batch like those to come.

        Returns:
            Seconds of one captured step.

        Raises:
            RuntimeError: It cannot be captured; gradients are gone, the rest can be restored.
            torch.OutOfMemoryError: It does not fit.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
            self._pool = torch.cuda.graph_pool_handle()
            hold_on_device(self.optimizer)
        ddp = isinstance(self._strategy.model, DistributedDataParallel)

        def forward_backward(inputs: Sequence[Tensor], part: Part) -> None:
            if part.first:
                # DDP's buckets hold the gradients for good; others are written anew by each replay.
                self.optimizer.zero_grad(set_to_none=not ddp)
            self._forward_backward(inputs, part, accumulate=shape.accumulate)

        torch.cuda.reset_peak_memory_stats(self._device)
        try:
            graphs = StepGraphs(
                forward_backward,
                self._update,
                (images_nhwc, labels),
                accumulate=shape.accumulate,
                parameters=self._parameters,
                keep_gradients=ddp,
                warmup_steps=WARMUP_STEPS_DDP if ddp else WARMUP_STEPS,
                stream=self._stream,
                pool=self._pool,
            )
        except RuntimeError:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        self._graphs[shape] = graphs
        self._captured_bytes[shape] = torch.cuda.max_memory_allocated(self._device)
        return self._seconds(graphs)

    def forget_captures(self) -> None:
        """Run every shape uncaptured from here on."""
        self._graphs.clear()
        self._captured_bytes.clear()

    def _seconds(self, graphs: StepGraphs) -> float:
        graphs.run_again()
        torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        for _ in range(TIMED_STEPS):
            graphs.run_again()
        torch.cuda.synchronize(self._device)
        return (time.perf_counter() - start) / TIMED_STEPS

    # --- what a step is ---

    def _forward_backward(self, inputs: Sequence[Tensor], part: Part, *, accumulate: int) -> None:
        images_nhwc, labels = inputs
        # The cache of casted weights would carry tensors from one captured graph into the next.
        autocast = torch.autocast(
            self._device.type, self._precision, enabled=self._precision != torch.float32, cache_enabled=False
        )
        with autocast:
            loss = self.objective(images_nhwc, labels) / accumulate
        with contextlib.nullcontext() if part.last else self._no_gradient_sync():
            scaled = loss if self._scaler is None else self._scaler.scale(loss)
            # DDP's reducer has to be told before each backward pass, as its own forward does.
            self._strategy.pre_backward(scaled)
            scaled.backward()
        shown = loss.detach() if len(self._networks) == 1 else loss.detach() / len(self._networks)
        if part.first:
            self.loss.copy_(shown)
        else:
            self.loss.add_(shown)

    def _update(self) -> None:
        if self._clip_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            for parameters in self._networks:
                torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm, foreach=True)
        if self._scaler is None:
            self.optimizer.step()
            return
        scaler: Any = self._scaler
        before = scaler._get_scale_async().clone()
        scaler.step(self.optimizer)
        scaler.update()
        self.skipped.add_(scaler._get_scale_async() < before)

    def _no_gradient_sync(self) -> contextlib.AbstractContextManager[Any]:
        wrapped = self._strategy.model
        return wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else contextlib.nullcontext()
