"""A filled image cache on disk: one file a shard, so that any number of ranks can read what another one wrote.

A file begins with a header of ``HEADER_BYTES`` (JSON, filled up with spaces), then come the images' own heights and
widths (int32 [n, 2]), then the squares (uint8 [n, px, px, 3]), in the order of the split, then a checksum (uint32) of
each part that ``chunks`` makes of them: CRC-32 of its heights and widths and its squares. All little-endian.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.data.cache_folder import lock, temporary_name
from fasttrain.data.image_file import explained
from fasttrain.data.scan import Split

FORMAT_VERSION = 2
HEADER_BYTES = 4096
# Threads that ask for the size and time of each file, and files that one of them asks for in one go: a network file
# system answers many at once.
STAT_THREADS, FILES_PER_TASK = 16, 1024
# Of the fingerprint, in the names of files: data sets that share a folder do not meet.
NAME_DIGITS = 12
# Bytes of squares that go through the host's memory at once; other parts have other checksums, so a change is one of
# the format.
CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Header:
    """What a file of the cache is made from; it is used only where all of this is as expected."""

    format_version: int
    fingerprint: str
    decoder: str
    cache_px: int
    shard: int
    num_shards: int
    num_images: int

    def file(self, folder: Path) -> Path:
        """Its place in ``data.cache_dir``."""
        images = f"{self.fingerprint[:NAME_DIGITS]}_{self.decoder}_{self.cache_px}px"
        return folder / f"{images}_shard_{self.shard}_of_{self.num_shards}.squares"

    @property
    def square_bytes(self) -> int:
        """Size of one image."""
        return self.cache_px**2 * 3

    @property
    def squares_at(self) -> int:
        """Where the squares begin."""
        return HEADER_BYTES + self.num_images * 8

    @property
    def checksums_at(self) -> int:
        """Where the checksums begin."""
        return self.squares_at + self.num_images * self.square_bytes

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.checksums_at + 4 * sum(1 for _ in chunks(self.num_images, self.square_bytes))


def checksum(sizes: NDArray[np.int32], squares: NDArray[np.uint8]) -> int:
    """Of one part: a damaged byte or a lost block shows, and it costs less than reading from most disks."""
    return zlib.crc32(squares.data, zlib.crc32(sizes.data))


def fingerprint(root: str, split: Split) -> str:
    """Says which images these are: paths below ``root``, classes, and the files' sizes and times, or the pixels.

    Raises:
        DataError: A file is gone, or a link to one that is not there.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in split.paths:
        digest.update(path.removeprefix(root).encode(errors="surrogateescape") + b"\0")
    digest.update(np.ascontiguousarray(split.labels, dtype="<i8").tobytes())
    if split.images is not None:
        digest.update(np.ascontiguousarray(split.images).data)

    def sizes_and_times(start: int) -> bytes:
        found = [explained(path, partial(os.stat, path)) for path in split.paths[start : start + FILES_PER_TASK]]
        return np.array([(file.st_size, file.st_mtime_ns) for file in found], dtype="<i8").tobytes()

    with ThreadPoolExecutor(STAT_THREADS) as threads:
        for part in threads.map(sizes_and_times, range(0, len(split.paths), FILES_PER_TASK)):
            digest.update(part)
    return digest.hexdigest()


def save_shard(folder: Path, header: Header, sizes: NDArray[np.int32], squares: torch.Tensor) -> Path:
    """Write a shard under a temporary name and give it its own when it is whole.

    Args:
        folder: ``data.cache_dir``; made if it is missing.
        sizes: int32 [n, 2].
        squares: uint8 [n, px, px, 3], on any device, also with gaps between its images.

    Raises:
        OSError: The folder cannot be written to, or is full.
    """
    file = header.file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(file)
    heights_and_widths = np.ascontiguousarray(sizes, dtype="<i4")
    checksums = []
    try:
        with temporary.open("wb") as opened:
            lock(opened)
            opened.write(json.dumps(asdict(header)).encode().ljust(HEADER_BYTES))
            opened.write(heights_and_widths.data)
            for part in chunks(len(squares), header.square_bytes):
                pixels = squares[part].contiguous().cpu().numpy()
                checksums.append(checksum(heights_and_widths[part], pixels))
                opened.write(pixels.data)
            opened.write(np.array(checksums, dtype="<u4").data)
            opened.flush()
            os.fsync(opened.fileno())
            temporary.replace(file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return file


def chunks(count: int, image_bytes: int) -> Iterator[slice]:
    """Parts of ``count`` images that pass through the host's memory one after the other."""
    step = max(1, CHUNK_BYTES // image_bytes)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
