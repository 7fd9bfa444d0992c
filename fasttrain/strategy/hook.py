"""The communication hook: gradients leave DDP's buckets, are joined, split, dealt over streams, and come back.

What is sent when, and over which stream, depends on the buckets alone, never on time: the order is the same on all
ranks. DDP itself calls the hook in one order on all ranks, so nothing needs to be negotiated.
"""

# Annotations must be real classes here: DDP compares them with its own.
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fasttrain.strategy.plan import MIB, CommPlan
from fasttrain.strategy.routes import Routes
from fasttrain.strategy.wire import pack, unpack, wire_dtype

# Bytes below which a bucket is not cut: below, the time is latency.
MIN_PART_BYTES = 64 * 1024


class CommState:
    """What the hook needs: the plan, the streams, and what of this step has not been sent yet.

    Args:
        plan: How gradients travel; may be exchanged between steps.
        routes: The streams.
        world_size: Over which gradients are averaged.
        device: On which they lie.
    """

    def __init__(self, plan: CommPlan, routes: Routes, *, world_size: int, device: torch.device) -> None:
        self.plan = plan
        self._routes, self._world_size, self._device = routes, world_size, device
        self._comm_stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._waiting: list[Tensor] = []
        self._gate: Future[Any] | None = None
        self._given: list[tuple[Future[Any], Tensor]] = []
        self._next_stream = 0
        self._first_bucket = 0
        self._num_buckets = 0

    def reduce(self, buffer: Tensor, *, last: bool) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket's gradients over the ranks, in place.

        Args:
            buffer: 1-D, of all gradients of a bucket.
            last: Whether it is the step's last bucket.
        """
        # As DDP does: divided before the sum, against overflow, by a product with the inverse.
        buffer.mul_(1.0 / self._world_size)
        if self._waiting and self._waiting[0].dtype != buffer.dtype:
            self._send()
        self._waiting.append(buffer)
        self._num_buckets += 1
        future = self._promise(buffer)
        if last or sum(b.nbytes for b in self._waiting) >= self.plan.join_mb * MIB:
            self._send()
        if last:
            self._next_stream = self._first_bucket = self._num_buckets = 0
        return future

    def _promise(self, buffer: Tensor) -> Future[Any]:
        """The future of one bucket, kept when what it is sent with has arrived."""
        if self._device.type == "cuda":
            promised: Future[Any] = Future(devices=[self._device])
            self._given.append((promised, buffer))
            return promised
        if self._gate is None:
            self._gate = Future()
        return self._gate.then(lambda gate: _opened(gate.value(), buffer))

    def _send(self) -> None:
        """Send what waits."""
        buffers, self._waiting = self._waiting, []
        gate, self._gate = self._gate, None
        first, self._first_bucket = self._first_bucket, self._num_buckets
        plan = self.plan
        dtype = wire_dtype(plan.wire, buffers[0].dtype)
        multiple = self._routes.multiple(hierarchical=plan.hierarchical)
        packed = len(buffers) > 1 or dtype != buffers[0].dtype or buffers[0].numel() % multiple != 0
        flat = pack(buffers, dtype, multiple) if packed else buffers[0]
        sent = []
        for start, end in cut(flat.numel(), flat.element_size(), plan, multiple):
            sent.append(self._routes.send(flat[start:end], self._next_stream, hierarchical=plan.hierarchical))
            self._next_stream = (self._next_stream + 1) % plan.streams
        back = buffers if packed else []
        if self._device.type == "cuda":
            self._keep_promises(sent, flat, back)
            return
        what = f"buckets {first} to {self._num_buckets - 1} ({flat.nbytes / MIB:.2f} MiB, {plan})"
        torch.futures.collect_all(sent).then(lambda done: _arrived(done, flat, back, gate, what))

    def _keep_promises(self, sent: Sequence[Any], flat: Tensor, back: Sequence[Tensor]) -> None:
        given, self._given = self._given, []
        # Only this stream waits; the backward pass goes on, and DDP's own wait at its end finds the events.
        self._comm_stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._comm_stream):
            for one in sent:
                self._routes.join(one)
            if back:
                unpack(flat, back)
                flat.record_stream(self._comm_stream)
            for promised, buffer in given:
                promised.set_result(buffer)


def accel_hook(state: CommState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook (DDP wants a plain function whose second parameter has this name)."""
    return state.reduce(bucket.buffer(), last=bucket.is_last())


def cut(length: int, item_bytes: int, plan: CommPlan, multiple: int) -> list[tuple[int, int]]:
    """Parts of a flat tensor, first and past-the-last element of each; at least one.

    Args:
        length: Elements, a multiple of ``multiple``.
        item_bytes: Of one.
        plan: Its ``split_mb`` bounds a part; without one there are as many parts as streams.
        multiple: Each part's length is one of it.
    """
    size = int(plan.split_mb * MIB) if plan.split_mb else max(MIN_PART_BYTES, -(-length * item_bytes // plan.streams))
    step = max(1, -(-size // (item_bytes * multiple))) * multiple
    return [(start, min(start + step, length)) for start in range(0, length, step)] or [(0, length)]


def _arrived(done: Future[Any], flat: Tensor, back: Sequence[Tensor], gate: Future[Any] | None, what: str) -> None:
    """All parts are here, or one has failed: open the gate, with the error where there is one.

    Runs on a thread of the process group, where a raised exception would be lost.
    """
    assert gate is not None
    error: Exception | None = None
    try:
        answers = [future.value() for future in done.value()]
        error = next((answer for answer in answers if isinstance(answer, Exception)), None)
        unpack(flat, back) if error is None and back else None
    except RuntimeError as raised:
        error = raised
    gate.set_result(None if error is None else RuntimeError(f"the all-reduce of {what} failed: {error}"))


def _opened(error: Any, buffer: Tensor) -> Tensor:
    if error is not None:
        raise error
    return buffer
