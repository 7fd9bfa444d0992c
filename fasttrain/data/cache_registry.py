"""A full cache outlives its run in the process: the next job of a sweep over the same images finds it."""

from __future__ import annotations

from dataclasses import dataclass

from fasttrain.data.cache_memory import device_memory, host_memory
from fasttrain.data.cache_store import ImageStore

# A kept cache takes at most this share of the memory that it lies in, so that the next job's network has room.
KEPT_FRAC = 0.5


@dataclass(frozen=True)
class CacheKey:
    """Which images a cache holds, and how.

    Attributes:
        images: Their ``cache_files.fingerprint``: files that have changed since are others.
        decoder: Name of the back end.
        cache: ``data.cache``.
        size: Height and width of a cached image.
        device: That crops are made on.
        shards: The first, the one behind the last, and how many there are of all ranks.
    """

    images: str
    decoder: str
    cache: str
    size: tuple[int, int]
    device: str
    shards: tuple[int, int, int]


_kept: dict[CacheKey, ImageStore] = {}


def take(key: CacheKey | None) -> ImageStore | None:
    """The kept cache if it is the one of ``key``; any other one gives its memory back."""
    for kept in list(_kept):
        if kept != key:
            _kept.pop(kept).close()
    return _kept.pop(key, None) if key is not None else None


def keep(key: CacheKey, store: ImageStore, sharers: int) -> None:
    """Keep a cache for the process's next run, or give its memory back where it is large or not full.

    Args:
        key: What it is.
        store: The cache.
        sharers: Ranks that share the host's memory.
    """
    store.settle()
    on_gpu = store.placement.kind == "gpu"
    memory = device_memory(store.device, sharers) if on_gpu else host_memory(sharers)
    if store.is_full and store.nbytes * memory.sharers <= KEPT_FRAC * memory.total:
        _kept[key] = store
    else:
        store.close()
