"""One rank's cache over its life: which images are the rank's, where they go, what was saved, what is kept."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.config.schema import RunConfig
from fasttrain.data import cache_registry
from fasttrain.data.batch import to_device
from fasttrain.data.cache_files import FORMAT_VERSION, Header, chunks, fingerprint, save_shard
from fasttrain.data.cache_folder import check_writable, remove_left_over
from fasttrain.data.cache_memory import choose, device_memory, host_memory
from fasttrain.data.cache_plan import MAX_PX_OVER_CACHE, cache_px, num_shards
from fasttrain.data.cache_reading import SavedShard, find_shard
from fasttrain.data.cache_registry import CacheKey
from fasttrain.data.cache_store import ImageStore
from fasttrain.data.check import check_shards
from fasttrain.data.scan import Scan
from fasttrain.errors import ConfigError

log = logging.getLogger("fasttrain")


class RankCache:
    """Owns one rank's cached images, from the first epoch that they serve to ``close``.

    A rank has the samples of ``num_shards / world_size`` neighbouring shards.

    Args:
        config: The run.
        scan: What there is.
        decoder: Name of the back end: decoders differ by a level or two.
        device: That trains.
        rank, world_size: Of this process.

    Attributes:
        size: Height and width of a cached image, pixels: squares of whole images, or records as they are.
        num_shards: Of all samples.

    Raises:
        ConfigError: The shards do not divide over the ranks.
        DataError: A file is gone that the scan found.
        MachineError: ``data.cache_dir`` cannot be written to, and not all of this cache is there yet.
    """

    def __init__(
        self, config: RunConfig, scan: Scan, *, decoder: str, device: torch.device, rank: int, world_size: int
    ) -> None:
        if problems := check_shards(config, world_size):
            raise ConfigError(problems)
        self._data, self._scan, self._device, self._rank = config.data, scan, device, rank
        # Ranks that share this machine's memory.
        self._sharers = min(world_size, torch.cuda.device_count()) if device.type == "cuda" else world_size
        self.num_shards = num_shards(config)
        own = self.num_shards // world_size
        self._own = range(rank * own, (rank + 1) * own)
        arrays, px = scan.train.images, cache_px(config, scan.num_train)
        self.size = (px, px) if arrays is None else (arrays.shape[1], arrays.shape[2])
        images, shards = fingerprint(scan.root, scan.train), (self._own.start, self._own.stop, self.num_shards)
        self._key = CacheKey(images, decoder, self._data.cache, self.size, str(device), shards)
        self._store = cache_registry.take(self._key)
        self._is_open = False
        self._found: dict[int, SavedShard | None] = {}
        if self._data.cache_dir is not None:
            self._look_for_shards(Path(self._data.cache_dir))
        self._unsaved: list[tuple[int, Header]] = []
        self._background = ThreadPoolExecutor(1, "save_cache")
        self._saving: Future[None] | None = None

    def local(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of this rank's samples among its own, in the order of the split, int64 [n]."""
        return samples // self.num_shards * len(self._own) + samples % self.num_shards - self._own.start

    def open(self) -> ImageStore:
        """The images; memory is taken at the first call, after the warm-up has shown how much training needs."""
        if self._store is not None and self._is_open:
            return self._store
        self._is_open = True
        if self._store is not None:
            self._say(f"{len(self._store.filled):,} images kept from the run before")
        else:
            self._store = self._make()
            if self._scan.train.images is not None:
                self._take_records(self._store, self._scan.train.images)
        if self._data.cache_dir is not None:
            self._load(self._store, Path(self._data.cache_dir))
        return self._store

    def has_room_for(self, num_bytes: int) -> bool:
        """Whether so much more fits on the device beside what is there."""
        return num_bytes <= device_memory(self._device, self._sharers).budget

    def epoch_done(self) -> None:
        """See that all is in place that the epoch brought; a cache that has become full is saved beside training."""
        store = self.open()
        store.settle()
        if self._unsaved and self._saving is None and store.is_full:
            filled = torch.cuda.Event() if self._device.type == "cuda" else None
            if filled is not None:
                filled.record()
            self._saving = self._background.submit(self._save, store, filled)

    def close(self) -> None:
        """Wait for what is being saved; the images may stay for the process's next run."""
        self._background.shutdown()
        if self._saving is not None:
            self._saving.result()
        if self._store is not None:
            cache_registry.keep(self._key, self._store, self._sharers)
            self._store = None

    def _make(self) -> ImageStore:
        num_images = sum(self._in_shard(shard) for shard in self._own)
        placement = choose(
            self._data.cache,
            num_images=num_images,
            image_bytes=self.size[0] * self.size[1] * 3,
            device=device_memory(self._device, self._sharers),
            host=host_memory(self._sharers),
        )
        px = int(self.size[0] * MAX_PX_OVER_CACHE)
        served = f" (stages up to {px} px)" if self._scan.train.images is None else ""
        self._say(placement.words + served)
        if self._data.cache == "gpu" and self._device.type != "cuda":
            self._say("data.cache=gpu: there is no GPU, the images are kept in host memory (data.cache=host)")
        return ImageStore(placement, num_images, self.size, self._device, workers=self._data.workers)

    def _in_shard(self, shard: int) -> int:
        return len(range(shard, self._scan.num_train, self.num_shards))

    def _take_records(self, store: ImageStore, records: NDArray[np.uint8]) -> None:
        """CIFAR-10's records are cached as they are."""
        shards = np.arange(len(records)) % self.num_shards
        own = np.flatnonzero((shards >= self._own.start) & (shards < self._own.stop))
        for part in chunks(len(own), records[0].nbytes):
            local = np.arange(part.start, part.stop)
            self._put(store, local, records[own[part]], np.tile(self.size, (len(local), 1)))
        store.settle()

    def _put(
        self, store: ImageStore, local: NDArray[np.int64], images: NDArray[np.uint8], sizes: NDArray[np.int64]
    ) -> None:
        store.put(local, to_device(images, store.images.device), sizes)

    def _look_for_shards(self, folder: Path) -> None:
        self._found = {shard: find_shard(folder, self._header_of(shard)) for shard in self._own}
        if None in self._found.values():
            # Now and not after the epoch that fills the cache; where all is there, it need only be read.
            check_writable(folder)
        remove_left_over(folder)

    def _header_of(self, shard: int) -> Header:
        key, count = self._key, self._in_shard(shard)
        return Header(FORMAT_VERSION, key.images, key.decoder, self.size[0], shard, self.num_shards, count)

    def _load(self, store: ImageStore, folder: Path) -> None:
        """Fill the cache from the shards that are saved; those that are not will be, once it is full."""
        was_full = store.is_full
        num_read = 0
        for place, (shard, saved) in enumerate(self._found.items()):
            if saved is not None and was_full:
                continue
            good = 0 if saved is None else self._read(store, place, saved)
            num_read += good
            if good < self._in_shard(shard):
                self._unsaved.append((place, self._header_of(shard)))
        store.settle()
        self._say(f"{num_read:,} of {len(store.filled):,} images read from data.cache_dir={folder}")
        if self._unsaved and store.placement.capacity < len(store.filled):
            self._say("not all images fit, so that data.cache_dir gets no new files")

    def _read(self, store: ImageStore, place: int, saved: SavedShard) -> int:
        """Put a shard's images into the cache, but for those that are damaged; returns how many are good."""
        good, damage = 0, ""
        for part in saved.parts():
            if part.damage:
                damage = part.damage
                continue
            good += len(part.sizes)
            local = place + len(self._own) * np.arange(part.images.start, part.images.stop)
            self._put(store, local, part.squares, part.sizes.astype(np.int64))
        if damage:
            bad = saved.header.num_images - good
            log.warning(
                f"{saved.file}: {bad:,} images are damaged: {damage}; they are decoded, and it is written again"
            )
        return good

    def _save(self, store: ImageStore, filled: torch.cuda.Event | None) -> None:
        """Write the shards, on a stream of its own; a disk that refuses them does not end the training."""
        stream = None
        if filled is not None:
            stream = torch.cuda.Stream(self._device)
            stream.wait_event(filled)
        for number, (place, header) in enumerate(self._unsaved):
            every = slice(place, None, len(self._own))
            try:
                with torch.cuda.stream(stream):
                    file = save_shard(Path(str(self._data.cache_dir)), header, store.sizes[every], store.images[every])
            except OSError as error:
                left = sum(header.file_bytes for _, header in self._unsaved[number:])
                log.warning(
                    f"cache: data.cache_dir={self._data.cache_dir} cannot be written: {error.strerror}; "
                    f"{left / 1e6:,.1f} MB are not saved, and the next run decodes them again: "
                    "make room, or data.cache_dir=PATH of another folder"
                )
                return
            self._say(f"saved {file}")

    def _say(self, words: str) -> None:
        if self._rank == 0:
            log.info(f"cache: {self.size[1]} x {self.size[0]} px, {words}")
