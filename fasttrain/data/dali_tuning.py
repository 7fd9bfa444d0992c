"""What DALI's back end measures on the first files: the hardware decoder's share, how many threads should read."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fasttrain.data.dali_stages import HARDWARE_DECODER_LOAD, Stage

# From none to most; the default comes first, in case time runs out.
CANDIDATES = (HARDWARE_DECODER_LOAD, 0.0, 0.2, 0.65)

# Seconds for all candidates, building their pipelines included; these count on both clocks.
TUNE_SECONDS = 2.0

# Images that a rank must decode for the measurement to be worth its time: at 20,000 images/s these take 100 s, of which
# a share that suits the machine better may save a tenth.
MIN_IMAGES = 2_000_000

# Threads that read files which come at once, out of the page cache. More wait for each other in the kernel: with 8 one
# H200's host read 30,000 files/s, with 16 25,000; two cores read 73,000 with 2 and 52,000 with 8.
FEW_THREADS = 2
# A file that takes longer comes from a disk or a network, where reads that are under way together do not.
SLOW_SECONDS = 150e-6
# Files that are looked at.
TIMED_FILES = 15


def reading_threads(paths: Sequence[str], most: int) -> int:
    """Threads that should read such files.

    Args:
        paths: Files of the first batch; those that cannot be read say nothing here.
        most: As many as there may be.
    """
    seconds = []
    for path in paths[:TIMED_FILES]:
        with contextlib.suppress(OSError):
            seconds.append(seconds_to_read(path))
    slow = bool(seconds) and statistics.median(seconds) > SLOW_SECONDS
    return most if slow else min(FEW_THREADS, most)


def seconds_to_read(path: str) -> float:
    """How long one file takes, from opening to closing it."""
    started = time.perf_counter()
    # A pipe in place of a file is opened without waiting for somebody to fill it.
    with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        file.read()
    return time.perf_counter() - started


def fastest_load(
    inputs: Mapping[str, Any],
    num_images: int,
    build: Callable[[float], Stage],
    device: torch.device,
    *,
    seconds: float,
    candidates: Sequence[float] = CANDIDATES,
) -> tuple[float, dict[float, float]]:
    """Decode one batch again and again with each share.

    Args:
        inputs: Of the second stage, one batch.
        num_images: In it.
        build: The second stage for a share; raises StageError where it cannot decode.
        device: Where it decodes.
        seconds: For all candidates together.
        candidates: Shares; at least one, those left when time is up are not tried.

    Returns:
        The fastest share, and images/s of all that were tried.
    """
    started = time.perf_counter()
    found: dict[float, float] = {}
    for place, load in enumerate(candidates):
        left = seconds - (time.perf_counter() - started)
        if found and left <= 0:
            break
        stage = build(load)
        found[load] = _rate(stage, dict(inputs), num_images, device, left / (len(candidates) - place) / 2)
    return max(found, key=lambda load: found[load]), found


def _rate(stage: Stage, inputs: dict[str, Any], num_images: int, device: torch.device, seconds: float) -> float:
    """Images/s of a stage whose queue is kept full; at least one batch after the queue has filled."""
    while stage.has_room:
        stage.feed(inputs)
    stage.take()
    images, started = 0, _now(device)
    while images == 0 or time.perf_counter() - started < seconds:
        stage.feed(inputs)
        stage.take()
        images += num_images
    rate = images / (_now(device) - started)
    stage.drain()
    return rate


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
