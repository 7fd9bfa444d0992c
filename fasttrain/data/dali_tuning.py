"""Which share of a run's files a GPU's hardware decoder should take: measured on the first of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fasttrain.data.dali_stages import HARDWARE_DECODER_LOAD, Stage

# From none to nearly all; the default comes first, in case time runs out.
CANDIDATES = (HARDWARE_DECODER_LOAD, 0.0, 0.35, 0.9)

# Seconds for all candidates, building their pipelines included; these count on both clocks.
TUNE_SECONDS = 2.0

# Images that a rank must decode for the measurement to be worth its time: at 20,000 images/s these take 100 s, and
# the choice has been seen to matter by about a tenth.
MIN_IMAGES = 2_000_000


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
