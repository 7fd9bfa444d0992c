"""How a part of the data path is timed: batches drained from an endless iterator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

# Batches before each measurement that do not count: queues fill, and what lay in them for long is used up. DALI's
# path works on three batches ahead.
WARM_BATCHES = 4


def now(device: torch.device) -> float:
    """Seconds on a steady clock, after all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Drained(NamedTuple):
    """What one measurement gave.

    Attributes:
        rate: Images/s.
        host_us: Processor time of all of the process's threads, microseconds an image. Where it is the same alone and
            together and the rates fall, something else than the processors is short.
    """

    rate: float
    host_us: float


def drain(batches: Iterator[int], seconds: float, device: torch.device) -> Drained:
    """Time an endless iterator that yields the number of images of each batch.

    Args:
        batches: Goes on where the last measurement left it.
        seconds: At least so long, and at least one batch.
        device: Where the batches are made.
    """
    for _ in range(WARM_BATCHES):
        next(batches)
    images = 0
    started, processors = now(device), time.process_time()
    while images == 0 or time.perf_counter() - started < seconds:
        images += next(batches)
    return Drained(images / (now(device) - started), (time.process_time() - processors) / images * 1e6)
