"""Reads what an earlier run saved of a cache, and only what is as it was written."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fasttrain.data.cache_files import HEADER_BYTES, Header, checksum, chunks
from fasttrain.data.image_file import MAX_SIDE_PX

log = logging.getLogger("fasttrain")

# Threads that read and check, a part each: one computes a checksum at 1 to 2 GB/s, slower than disks and page caches.
READ_THREADS = 4


@dataclass(frozen=True, eq=False)
class Part:
    """Neighbouring images of a shard.

    Attributes:
        images: Their places in the shard.
        sizes: Heights and widths before they became squares, int32 [n, 2].
        squares: uint8 [n, px, px, 3].
        damage: Why they must not be used; empty where they may.
    """

    images: slice
    sizes: NDArray[np.int32]
    squares: NDArray[np.uint8]
    damage: str


@dataclass(frozen=True)
class SavedShard:
    """A file of the cache whose header and length are as expected."""

    file: Path
    header: Header

    def parts(self) -> Iterator[Part]:
        """All images in order, each part read ahead and compared with its checksum."""
        ahead: deque[Future[Part]] = deque()
        with ThreadPoolExecutor(READ_THREADS, "read_cache") as threads:
            try:
                for number, images in enumerate(chunks(self.header.num_images, self.header.square_bytes)):
                    ahead.append(threads.submit(self._read, number, images))
                    if len(ahead) > READ_THREADS:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for task in ahead:
                    task.cancel()

    def _read(self, number: int, images: slice) -> Part:
        header, count = self.header, images.stop - images.start
        sizes = np.empty((count, 2), dtype="<i4")
        squares = np.empty((count, header.cache_px, header.cache_px, 3), dtype=np.uint8)
        saved = np.empty(1, dtype="<u4")
        pieces: tuple[tuple[int, NDArray[np.generic]], ...] = (
            (HEADER_BYTES + images.start * 8, sizes),
            (header.squares_at + images.start * header.square_bytes, squares),
            (header.checksums_at + number * 4, saved),
        )
        damage = ""
        try:
            # Opened for each part: another run may put a file of its own there, whose checksums are its own.
            with self.file.open("rb") as opened:
                for place, values in pieces:
                    opened.seek(place)
                    if opened.readinto(values.data) != values.nbytes:
                        damage = "it is cut off"
        except OSError as error:
            damage = f"it cannot be read: {error.strerror}"
        if not damage and checksum(sizes, squares) != saved[0]:
            damage = "they are not what was saved (another checksum)"
        elif not damage and not ((sizes >= 1) & (sizes <= MAX_SIDE_PX)).all():
            damage = f"heights and widths are not all from 1 to {MAX_SIDE_PX}"
        return Part(images, sizes, squares, damage)


def find_shard(folder: Path, header: Header) -> SavedShard | None:
    """The saved shard; None where there is none, or one that is not what is expected (the log says why)."""
    if not os.path.isdir(folder) or not os.access(folder, os.X_OK):
        return None  # whoever is to make it says why that cannot be
    file = header.file(folder)
    try:
        with file.open("rb") as opened:
            start, size = opened.read(HEADER_BYTES), os.fstat(opened.fileno()).st_size
        why = _why_not(start, size, header)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = f"it cannot be read: {error.strerror}"
    if why is not None:
        log.warning(f"{file}: {why}; it is filled anew and written again")
        return None
    return SavedShard(file, header)


def _why_not(start: bytes, size: int, expected: Header) -> str | None:
    try:
        found = asdict(Header(**json.loads(start)))
    except (ValueError, TypeError, RecursionError):
        return "its header cannot be read"
    if found["format_version"] != expected.format_version:
        return f"its format has version {found['format_version']}, expected {expected.format_version}"
    if found["fingerprint"] != expected.fingerprint:
        return "it was made from other images, or from files that have changed since"
    for name, value in asdict(expected).items():
        if found[name] != value:
            return f"{name} is {found[name]}, expected {value}"
    if size != expected.file_bytes:
        return f"it has {size:,} bytes, expected {expected.file_bytes:,}: it is cut off"
    return None
