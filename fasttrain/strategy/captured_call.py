"""Somebody's training step, replayed as one CUDA graph once its communication is settled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fasttrain.strategy.capture import WARMUP_STEPS_DDP

log = logging.getLogger("fasttrain")

# Shapes of inputs that are captured; each holds memory of its own. Others run as they are.
MAX_SHAPES = 8

Step = Callable[..., Any]


@dataclass
class _Shape:
    """What is known of one shape: its fixed inputs, how often it has run, and its graph."""

    inputs: list[Tensor]
    runs: int = 0
    graph: Any = None
    outputs: Any = None


class CapturedCall:
    """Calls a step, and replays it where it can be captured.

    Each call is one real training step: the first ones run as they are, on a side stream, until ``prepare`` says
    that nothing will be exchanged any more, and eleven more (DDP times its first ones with events, which a capture
    does not take).

    Args:
        step: Takes tensors and trains one step: zeroes gradients in place (``set_to_none=False``), forward,
            backward, update with an optimizer that can be captured (``capturable=True``); under autocast with
            ``cache_enabled=False``. It must not read values back. What it returns is overwritten by the next call.
        prepare: Takes the stream; ``None`` as long as steps may still change, else what stands against a capture,
            ``""`` for nothing.
    """

    def __init__(self, step: Step, prepare: Callable[[Any], str | None]) -> None:
        self._step, self._prepare = step, prepare
        self._stream: Any = None
        self._pool: Any = None
        self._shapes: dict[tuple[Any, ...], _Shape] = {}
        self._prepared = False
        self.why_not: str | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        if self.why_not is None and not (inputs and all(tensor.is_cuda for tensor in inputs)):
            self._give_up("its inputs are not on a GPU")
        if self.why_not is not None:
            return self._step(*inputs)
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        if not self._prepared:
            answer = self._prepare(self._stream)
            if answer:
                self._give_up(answer)
                return self._step(*inputs)
            self._prepared = answer is not None
        key = tuple((tensor.shape, tensor.dtype, tensor.stride()) for tensor in inputs)
        if key not in self._shapes:
            if len(self._shapes) == MAX_SHAPES or not self._prepared:
                return self._on_side_stream(list(inputs))
            self._shapes[key] = _Shape([tensor.clone() for tensor in inputs])
        return self._run(self._shapes[key], inputs)

    def _run(self, shape: _Shape, inputs: tuple[Tensor, ...]) -> Any:
        for fixed, given in zip(shape.inputs, inputs, strict=True):
            fixed.copy_(given, non_blocking=True)
        if shape.graph is None and shape.runs < WARMUP_STEPS_DDP:
            shape.runs += 1
            return self._on_side_stream(shape.inputs)
        if shape.graph is None:
            try:
                self._capture(shape)
            except RuntimeError as error:
                self._give_up(" ".join(str(error).split())[:300])
                return self._step(*inputs)
        shape.graph.replay()
        return shape.outputs

    def _on_side_stream(self, inputs: list[Tensor]) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            outputs = self._step(*inputs)
        torch.cuda.current_stream().wait_stream(self._stream)
        return outputs

    def _capture(self, shape: _Shape) -> None:
        graph = torch.cuda.CUDAGraph()
        # thread_local: data threads and NCCL's watchdog call the driver meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            shape.outputs = self._step(*shape.inputs)
        shape.graph = graph

    def _give_up(self, reason: str) -> None:
        self.why_not = reason
        log.warning("the step is not captured: %s", reason)
