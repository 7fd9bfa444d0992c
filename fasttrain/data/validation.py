"""How validation is cut into batches: every image once over all ranks, the same shapes on each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasttrain.stages import Plan

# Images of one forward pass. Without gradients a pass needs a fraction of training's memory, so the training
# micro-batch always fits; below 64 the device idles, above 512 nothing is gained.
MIN_BATCH, MAX_BATCH = 64, 512
# Rectangular batches: sides are rounded to whole multiples, so that convolutions stay on fast paths, and the
# number of shapes is bounded, since each is compiled and warmed up before the clock.
SIDE_MULTIPLE = 8
MAX_SHAPES = 8
# A panorama is cut to this ratio of long to short side.
MAX_RATIO = 2.0


@dataclass(frozen=True, eq=False)
class ValBatch:
    """One rank's part of a validation batch.

    Attributes:
        rows: Images, int64 [n]; behind the valid ones any image fills the shape up.
        num_valid: How many of the leading rows count here and nowhere else.
        height, width: Of the images, pixels.
    """

    rows: NDArray[np.int64]
    num_valid: int
    height: int
    width: int


def val_batch_size(plan: Plan, px: int, *, num_val: int, world_size: int) -> int:
    """Images of one rank's validation batch.

    The smallest training micro-batch among the epochs that validate at ``px`` (all, if none does), within
    ``MIN_BATCH`` and ``MAX_BATCH``, and no larger than a rank's share of the images.
    """
    epochs = [epoch for epoch in plan.epochs if epoch.val_px == px] or plan.epochs
    size = min(plan.micro_batch(epoch) for epoch in epochs)
    return max(1, min(max(size, MIN_BATCH), MAX_BATCH, -(-num_val // world_size)))


def plan_validation(
    num_val: int,
    px: int,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    sizes: NDArray[np.int64] | None = None,
) -> list[ValBatch]:
    """One rank's batches; the ranks' k-th batches have one shape.

    Args:
        num_val: Images of the split.
        px: Short side of the images, pixels.
        batch_size: Images of one rank's batch.
        rank, world_size: Rank r takes the r-th of world_size equal slices of every global batch.
        sizes: Heights and widths of the images, int64 [num_val, 2]: batches of similar aspect ratio keep that
            ratio (rectangular validation, imagenet18 by fast.ai). None: square images, in the scan's order.

    Returns:
        ceil(num_val / (batch_size * world_size)) batches.
    """
    global_batch = batch_size * world_size
    num_batches = -(-num_val // global_batch)
    if sizes is None:
        order, shapes = np.arange(num_val), [(px, px)] * num_batches
    else:
        ratios = sizes[:, 1] / sizes[:, 0]
        order = np.argsort(ratios, kind="stable")
        shapes = _rectangles(ratios[order], px, global_batch, num_batches)
    filled = np.resize(order, num_batches * global_batch).astype(np.int64)
    batches = []
    for number, (height, width) in enumerate(shapes):
        first = number * global_batch + rank * batch_size
        num_valid = min(max(num_val - first, 0), batch_size)
        batches.append(ValBatch(filled[first : first + batch_size], num_valid, height, width))
    return batches


def _rectangles(ratios: NDArray[np.float64], px: int, global_batch: int, num_batches: int) -> list[tuple[int, int]]:
    """Height and width of each global batch, from the mean of width / height in its group of batches."""
    num_groups = min(MAX_SHAPES, num_batches)
    groups = np.arange(num_batches) * num_groups // max(num_batches, 1)
    shapes = {}
    for group in range(num_groups):
        first, last = np.searchsorted(groups, [group, group + 1]) * global_batch
        ratio = float(ratios[first:last].mean())
        long = round(min(max(ratio, 1 / ratio), MAX_RATIO) * px / SIDE_MULTIPLE) * SIDE_MULTIPLE
        long = max(long, px)
        shapes[group] = (px, long) if ratio >= 1 else (long, px)
    return [shapes[group] for group in groups.tolist()]
