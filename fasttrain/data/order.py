"""The order of an epoch's images: a pure function of (seed, epoch, shards), the same on every rank and back end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_order(num_samples: int, seed: int, epoch: int, *, num_shards: int = 1) -> NDArray[np.int64]:
    """All samples once, shard after shard, shuffled within each.

    The samples are sorted by the raw output of a counter-based generator, which numpy promises to keep
    from version to version; its ``permutation`` comes without that promise.

    Args:
        num_samples: Images of the training split.
        seed: The run's ``seed``.
        epoch: Zero-based, of the recipe.
        num_shards: Sample i belongs to shard ``i % num_shards``, whose samples keep the order that they have
            in the shuffle of all.

    Returns:
        int64 [num_samples], a permutation.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_samples)
    # A key's low bits make room for the sample's index: sorting numbers takes a tenth of the time of argsort.
    index_bits = np.uint64(max(num_samples - 1, 0).bit_length())
    samples = np.arange(num_samples, dtype=np.uint64)
    ordered = np.sort((keys >> index_bits << index_bits) | samples)
    order = (ordered & ((np.uint64(1) << index_bits) - np.uint64(1))).astype(np.int64)
    if num_shards == 1:
        return order
    return np.concatenate([order[order % num_shards == shard] for shard in range(num_shards)])


def epoch_batches(order: NDArray[np.int64], batch_size: int, *, num_shards: int = 1) -> NDArray[np.int64]:
    """Samples of every optimizer step of an epoch, over all ranks.

    Each batch draws equally from all shards and holds them one after the other. So on any number of ranks that
    divides the shards, a rank's slice of a batch has samples of its own shards only, and the batch is the same.

    A shard's last part is filled from its own first images of the epoch, so that every step has one shape; only
    these images are seen twice. Shards differ by at most one image: where a batch ends just before that image,
    the smaller shards' part of the last batch is all filled.

    Args:
        order: ``epoch_order`` with the same ``num_shards``.
        batch_size: Images of one step over all ranks; divides by the shards, at most the epoch's images.
        num_shards: Of the order.

    Returns:
        int64 [ceil(num_samples / batch_size), batch_size].

    Raises:
        ValueError: A batch does not divide over the shards or is larger than the epoch.
    """
    num_samples = len(order)
    if batch_size % num_shards or not 0 < batch_size <= num_samples:
        raise ValueError(f"{batch_size} images of {num_samples} cannot be drawn from {num_shards} shards")
    steps, part = -(-num_samples // batch_size), batch_size // num_shards
    sizes = [len(range(shard, num_samples, num_shards)) for shard in range(num_shards)]
    shards = np.split(order, np.cumsum(sizes)[:-1])
    # np.resize repeats from the start.
    return np.concatenate([np.resize(shard, (steps, part)) for shard in shards], axis=1)


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
