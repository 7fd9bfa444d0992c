"""The parts of the data path, each alone: endless iterators that yield how many images they have done."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fasttrain.config.schema import RunConfig
from fasttrain.data.augment import Crop, RandomResizedCrop, draw_flips
from fasttrain.data.backend import Backend, Request
from fasttrain.data.decode import image_size
from fasttrain.data.order import epoch_order
from fasttrain.data.path import DataPath
from fasttrain.data.preprocess import CentreCrop, Normalize
from fasttrain.data.scan import Split
from fasttrain.stages import EpochPlan

# Batches of encoded files that ``decode`` goes through again and again.
BATCHES_IN_MEMORY = 2

Batches = Generator[int, None, None]


class Parts:
    """Makes the parts that a run's data path is made of.

    Args:
        config: The run.
        split: Its training images.
        backend: One of its own, not the path's.
        device: Where images go.
        wanted: Names of parts; those that do not apply here are left out, and ``left_out`` says why.
    """

    def __init__(
        self, config: RunConfig, split: Split, backend: Backend, device: torch.device, wanted: Sequence[str]
    ) -> None:
        self._config, self._split, self.backend, self._device = config, split, backend, device
        self._threads = max(1, config.data.workers)
        self._wanted, self.left_out = self._applying(wanted)

    @property
    def compares_dali(self) -> bool:
        """Whether DALI alone is to be set beside this path."""
        return "dali_ratio" in self._wanted

    def streams(self, epoch: EpochPlan, batch: int) -> dict[str, Batches]:
        """The wanted parts by name, for the px of an epoch."""
        makers: dict[str, Callable[[], Batches]] = {
            "read": lambda: read_files(self._split, self._rows(batch), self._threads),
            "headers": lambda: self._headers(batch),
            "decode": lambda: self._decode(batch, None),
            "decode_region": lambda: self._decode(batch, epoch.min_area),
            "backend": lambda: self.through_backend(epoch, batch),
            "transfer": lambda: transfer(self._device, batch, epoch.px),
            "normalize": lambda: normalize(self._device, batch, epoch.px, self._config),
        }
        return {name: make() for name, make in makers.items() if name in self._wanted}

    def through_backend(self, epoch: EpochPlan, batch: int) -> Batches:
        """The back end's own pixels for requests as training makes them, without labels, order or cache."""
        requests = (train_request(self._split, rows, self._config, epoch) for rows in self._rows(batch))
        for request, _ in self.backend.images(requests):
            yield len(request.rows)

    def bare_dali(self, epoch: EpochPlan, batch: int, like: Backend) -> Batches:
        """DALI as its manual has it, for the same files, px and smallest crop.

        Args:
            epoch: Gives px and smallest crop.
            batch: Images at once.
            like: What it is set beside; asked for its options at the first batch, when it has chosen them.
        """
        from fasttrain.bench.bare_dali import training_batches

        yield from training_batches(
            self._split,
            px=epoch.px,
            batch=batch,
            min_area=epoch.min_area,
            device=self._device,
            threads=self._threads,
            decoder=decoder_options(like),
        )

    def _rows(self, batch: int) -> Iterator[NDArray[np.int64]]:
        return rows_of_batches(len(self._split.labels), batch, self._config.seed)

    def _applying(self, wanted: Sequence[str]) -> tuple[set[str], list[str]]:
        needs_files = {"read", "headers", "decode", "decode_region", "dali_ratio"}
        reasons = {
            "these images are no files": needs_files if self._split.images is not None else set(),
            "this back end is not DALI": {"decode_region", "dali_ratio"} if self.backend.name != "dali" else set(),
            "there is no GPU": {"transfer"} if self._device.type == "cpu" else set(),
        }
        notes = []
        for reason, names in reasons.items():
            if left := [name for name in wanted if name in names]:
                notes.append(f"{', '.join(left)} not measured: {reason}")
        return set(wanted).difference(*reasons.values()), notes

    def _headers(self, batch: int) -> Batches:
        if self.backend.name != "dali":
            return read_headers(self._split, self._rows(batch), self._threads)
        from fasttrain.bench.bare_dali import header_batches
        from fasttrain.data.dali_tuning import reading_threads

        threads = reading_threads(self._split.paths, self._threads)
        return header_batches(self._split, self._rows(batch), batch=batch, threads=threads)

    def _decode(self, batch: int, min_area: float | None) -> Batches:
        encoded = encoded_batches(self._split, self._rows(batch))
        if self.backend.name != "dali":
            return decode_files(encoded, self._threads)
        from fasttrain.bench.bare_dali import decoded_batches

        return decoded_batches(
            encoded,
            min_area=min_area,
            device=self._device,
            threads=self._threads,
            decoder=decoder_options(self.backend),
        )


def decoder_options(backend: Backend) -> dict[str, Any]:
    """With which DALI's back end decodes on a GPU."""
    from fasttrain.data.dali_backend import DaliBackend

    assert isinstance(backend, DaliBackend)
    return backend.decoder_options


def rows_of_batches(num_train: int, batch: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Samples of batch after batch, epoch after epoch, without end; whole batches only."""
    for epoch in itertools.count():
        order = epoch_order(num_train, seed, epoch)
        for first in range(0, num_train - batch + 1, batch):
            yield order[first : first + batch]


def read_files(split: Split, rows: Iterator[NDArray[np.int64]], threads: int) -> Batches:
    """Bytes of files, in threads."""

    def size(path: str) -> int:
        return len(Path(path).read_bytes())

    return _in_threads(size, split, rows, threads)


def read_headers(split: Split, rows: Iterator[NDArray[np.int64]], threads: int) -> Batches:
    """Heights and widths from headers, with Pillow in threads."""
    return _in_threads(image_size, split, rows, threads)


def decode_files(encoded: list[list[bytes]], threads: int) -> Batches:
    """Whole images out of bytes that lie in memory, with Pillow in threads."""

    def decode(content: bytes) -> None:
        with Image.open(io.BytesIO(content)) as image:
            image.convert("RGB")

    with ThreadPoolExecutor(threads) as pool:
        for batch in itertools.cycle(encoded):
            yield sum(1 for _ in pool.map(decode, batch))


def encoded_batches(split: Split, rows: Iterator[NDArray[np.int64]]) -> list[list[bytes]]:
    """The files of the next batches."""
    batches = itertools.islice(rows, BATCHES_IN_MEMORY)
    return [[Path(split.paths[row]).read_bytes() for row in batch.tolist()] for batch in batches]


def train_request(split: Split, rows: NDArray[np.int64], config: RunConfig, epoch: EpochPlan) -> Request:
    """What training asks a back end for."""
    drawn = (config.seed, epoch.recipe_epoch, rows)
    crop: Crop = CentreCrop(epoch.px, epoch.px, 1.0)
    if config.data.crop == "random_resized":
        crop = RandomResizedCrop.draw(*drawn, min_area=epoch.min_area)
    flips = None if config.data.flip == "none" else draw_flips(*drawn, kind=config.data.flip)
    return Request(split, rows, epoch.px, epoch.px, crop, flips)


def through_path(path: DataPath, epochs: list[EpochPlan]) -> Batches:
    """``train_epoch`` drained as the trainer does, epoch after epoch."""
    for epoch in itertools.cycle(epochs):
        for micro_batches in path.train_epoch(epoch):
            yield sum(len(batch.labels) for batch in micro_batches)


def transfer(device: torch.device, batch: int, px: int) -> Batches:
    """Batches of uint8 pixels from pinned memory to the device."""
    pinned = torch.zeros((batch, px, px, 3), dtype=torch.uint8).pin_memory()
    while True:
        pinned.to(device, non_blocking=True)
        yield batch


def normalize(device: torch.device, batch: int, px: int, config: RunConfig) -> Batches:
    """Uint8 pixels on the device to the network's input."""
    module = Normalize(tuple(config.data.mean), tuple(config.data.std)).to(device)
    pixels = torch.zeros((batch, px, px, 3), dtype=torch.uint8, device=device)
    while True:
        module(pixels)
        yield batch


def _in_threads(
    work: Callable[[str], object], split: Split, rows: Iterator[NDArray[np.int64]], threads: int
) -> Batches:
    with ThreadPoolExecutor(threads) as pool:
        for batch in rows:
            paths = [split.paths[row] for row in batch.tolist()]
            yield sum(1 for _ in pool.map(work, paths, chunksize=16))
