"""The time from one step to the next, without making the host wait for the device."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist


class Stopwatch:
    """Marks moments between steps: on the device's own clock where it is a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[Any, bool]] = []

    def reset(self) -> None:
        """Forget all marks."""
        self._marks = []

    def mark(self, *, counts: bool = True) -> None:
        """A step ends here, and the next one begins.

        Args:
            counts: Whether nothing but a step lies between this moment and the last one.
        """
        if self._device.type == "cuda":
            moment: Any = torch.cuda.Event(enable_timing=True)
            moment.record(torch.cuda.current_stream(self._device))
        else:
            moment = time.perf_counter()
        self._marks.append((moment, counts))

    def seconds(self) -> list[float]:
        """Of each step between the marks; waits for the device once."""
        moments = [moment for moment, _ in self._marks]
        pairs = [(first, moment) for first, (moment, counts) in zip(moments, self._marks[1:], strict=False) if counts]
        if self._device.type == "cuda" and pairs:
            moments[-1].synchronize()
            return [first.elapsed_time(second) / 1000 for first, second in pairs]
        return [second - first for first, second in pairs]

    def median_s(self) -> float | None:
        """The median of ``seconds``; None where no step counts."""
        seconds = self.seconds()
        return statistics.median(seconds) if seconds else None


def slowest_rank_s(seconds: float, device: torch.device, group: dist.ProcessGroup | None) -> float:
    """The largest of all ranks' figures; all must ask."""
    value = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return float(value)


def ranks_differ(parameters: list[torch.Tensor], device: torch.device, group: dist.ProcessGroup | None) -> bool:
    """Whether any rank's weights differ from another's in any bit (a sum over the bits tells); all must ask."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for index, parameter in enumerate(parameters):
        bits = parameter.detach().contiguous().view(torch.uint8)
        # Weighted by position, so that exchanged values do not cancel.
        weights = torch.arange(1, bits.numel() + 1, device=device, dtype=torch.int64).view_as(bits)
        total += (index + 1) * (bits.to(torch.int64) * weights).sum()
    low, high = total.clone(), total.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
    dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
    return bool(low != high)
