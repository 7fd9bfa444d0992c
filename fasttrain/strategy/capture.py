"""A training step as CUDA graphs: the host launches one graph in place of hundreds of kernels.

Nothing here knows of Lightning, networks or data: a step is two functions over fixed tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Uncaptured steps before a capture. DDP times its first iterations with events, which a capture does not take;
# torch's notes on CUDA graphs ask for eleven of them.
WARMUP_STEPS, WARMUP_STEPS_DDP = 3, 11


@dataclass(frozen=True)
class Part:
    """Which of a step's micro-batches: the first finds no gradients, the last reduces them over the ranks."""

    first: bool
    last: bool


def parts_of_step(accumulate: int) -> list[Part]:
    """The parts of a step of ``accumulate`` micro-batches, in order."""
    return [Part(k == 0, k == accumulate - 1) for k in range(accumulate)]


ForwardBackward = Callable[[Sequence[Tensor], Part], None]


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Let every operation that makes the host wait for the device raise a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class StepGraphs:
    """One shape's training step, captured: a graph for each kind of micro-batch and one for the update.

    Gradients lie in the graphs' own memory, where each replay of the first part writes them anew; with
    ``keep_gradients`` they lie where they are (DDP's buckets) and the step itself must zero them. Everything else
    that the functions change must exist before and stay where it is: a replay writes to the same addresses.

    Args:
        forward_backward: Takes the inputs and the part; adds this micro-batch's gradients.
        update: Applies the gradients. Called once between two captures, so that it may build what depends on the
            gradients' addresses.
        inputs: A micro-batch like those to come; kept as the fixed tensors that the graphs read.
        accumulate: Micro-batches of a step.
        parameters: Whose gradients they are.
        keep_gradients: See above.
        warmup_steps: Uncaptured steps before the capture.
        stream: On which all of this runs, not the default stream.
        pool: Memory that the graphs of several shapes share; only one shape is replayed at a time.

    Raises:
        RuntimeError: A function does what a graph cannot hold (reads a value back, for example).
        torch.OutOfMemoryError: The shape does not fit.
    """

    def __init__(
        self,
        forward_backward: ForwardBackward,
        update: Callable[[], None],
        inputs: Sequence[Tensor],
        *,
        accumulate: int,
        parameters: Sequence[torch.nn.Parameter],
        keep_gradients: bool,
        warmup_steps: int,
        stream: torch.cuda.Stream,
        pool: Any,
    ) -> None:
        self._parts = parts_of_step(accumulate)
        self._inputs = [tensor.clone() for tensor in inputs]
        self._graphs: dict[Part, torch.cuda.CUDAGraph] = {}
        self._stream, self._pool = stream, pool
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for step in range(warmup_steps):
                # Once all is set up, in the last of these steps, a wait for the device is an error: a capture that
                # fails in its middle leaves torch's random numbers unusable.
                with nullcontext() if step < warmup_steps - 1 else waiting_is_an_error():
                    for part in self._parts:
                        forward_backward(self._inputs, part)
                    update()
            if not keep_gradients:
                for parameter in parameters:
                    parameter.grad = None
            for part in dict.fromkeys(self._parts):
                self._graphs[part] = self._capture(lambda part=part: forward_backward(self._inputs, part))  # type: ignore[misc]
            self._replay_parts()
            update()
            self._update = self._capture(update)
        torch.cuda.current_stream().wait_stream(stream)

    def run(self, micro_batches: Sequence[Sequence[Tensor]]) -> None:
        """One step on the current stream, on micro-batches of the captured shapes and types.

        Raises:
            ValueError: Their number, a shape or a type is another.
        """
        for part, batch in zip(self._parts, micro_batches, strict=True):
            for fixed, given in zip(self._inputs, batch, strict=True):
                if fixed.shape != given.shape or fixed.dtype != given.dtype:
                    raise ValueError(
                        f"captured for {list(fixed.shape)} {fixed.dtype}, given {list(given.shape)} {given.dtype}"
                    )
                fixed.copy_(given, non_blocking=True)
            self._graphs[part].replay()
        self._update.replay()

    def run_again(self) -> None:
        """One step on what the fixed tensors hold."""
        self._replay_parts()
        self._update.replay()

    def _replay_parts(self) -> None:
        for part in self._parts:
            self._graphs[part].replay()

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # thread_local: data threads and NCCL's watchdog call the driver meanwhile, which must not break the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            function()
        return graph
