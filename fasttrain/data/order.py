"""The order of an epoch's images: a pure function of (seed, epoch), the same on every rank and back end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_order(num_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """All samples once, shuffled.

    The samples are sorted by the raw output of a counter-based generator, which numpy promises to keep
    from version to version; its ``permutation`` comes without that promise.

    Args:
        num_samples: Images of the training split.
        seed: The run's ``seed``.
        epoch: Zero-based, of the recipe.

    Returns:
        int64 [num_samples], a permutation.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_samples)
    # A key's low bits make room for the sample's index: sorting numbers takes a tenth of the time of argsort.
    index_bits = np.uint64(max(num_samples - 1, 0).bit_length())
    samples = np.arange(num_samples, dtype=np.uint64)
    ordered = np.sort((keys >> index_bits << index_bits) | samples)
    return (ordered & ((np.uint64(1) << index_bits) - np.uint64(1))).astype(np.int64)


def step_indices(order: NDArray[np.int64], step: int, batch_size: int) -> NDArray[np.int64]:
    """Samples of one optimizer step over all ranks.

    The epoch's last batch is filled from the epoch's first images, so that every step has one shape; only
    these images are seen twice.

    Args:
        order: The epoch's order.
        step: Zero-based within the epoch.
        batch_size: Images of one step over all ranks.

    Returns:
        int64 [batch_size].

    Raises:
        ValueError: ``step`` is past the epoch's end, or a batch is larger than the epoch.
    """
    num_samples = len(order)
    first = step * batch_size
    if not 0 <= first < num_samples or batch_size > num_samples:
        raise ValueError(f"step {step} of {batch_size} images is outside an epoch of {num_samples}")
    last = first + batch_size
    if last <= num_samples:
        return order[first:last]
    return np.concatenate([order[first:], order[: last - num_samples]])


def micro_batches(
    indices: NDArray[np.int64], *, rank: int, world_size: int, accumulate: int
) -> list[NDArray[np.int64]]:
    """One rank's share of a step, in the parts that it takes one after the other.

    Args:
        indices: Samples of the step over all ranks, int64 [batch_size]; divides by ranks and parts.
        rank, world_size: Rank r takes the r-th of world_size equal slices.
        accumulate: Equal parts of a rank's slice.

    Returns:
        ``accumulate`` arrays of int64 [batch_size / world_size / accumulate].
    """
    return list(indices.reshape(world_size, accumulate, -1)[rank])
