"""A filled image cache on disk: one file a shard, so that any number of ranks can read what another one wrote.

A file begins with a header of ``HEADER_BYTES`` (JSON, filled up with spaces), then come the images' own heights and
widths (int32 [n, 2]), then the squares (uint8 [n, px, px, 3]), in the order of the split.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.data.scan import Split

log = logging.getLogger("fasttrain")

FORMAT_VERSION = 1
HEADER_BYTES = 4096
# Threads that ask for the size and time of each file: a network file system answers many at once.
STAT_THREADS = 16
# Bytes of squares that go through the host's memory at once.
CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Header:
    """What a file of the cache is made from; it is used only where all of this is as expected."""

    format_version: int
    fingerprint: str
    cache_px: int
    shard: int
    num_shards: int
    num_images: int

    def file(self, folder: Path) -> Path:
        """Its place in ``data.cache_dir``."""
        return folder / f"shard_{self.shard}_of_{self.num_shards}_{self.cache_px}px.squares"

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return HEADER_BYTES + self.num_images * (8 + self.cache_px**2 * 3)


def fingerprint(root: str, split: Split) -> str:
    """Says which images these are: their paths below ``root``, classes, and the files' sizes and times."""
    digest = hashlib.blake2b(digest_size=16)
    for path in split.paths:
        digest.update(path.removeprefix(root).encode(errors="surrogateescape") + b"\0")
    digest.update(np.ascontiguousarray(split.labels, dtype="<i8").tobytes())

    def size_and_time(path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns

    with ThreadPoolExecutor(STAT_THREADS) as threads:
        stats = list(threads.map(size_and_time, split.paths, chunksize=256))
    digest.update(np.array(stats, dtype="<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class SavedShard:
    """A file of the cache, mapped.

    Attributes:
        sizes: int32 [n, 2].
        squares: uint8 [n, px, px, 3].
    """

    sizes: NDArray[np.int32]
    squares: NDArray[np.uint8]


def open_shard(folder: Path, header: Header) -> SavedShard | None:
    """The saved shard; None where there is none, or one that is not what is expected (the log says why)."""
    file = header.file(folder)
    if not file.exists():
        return None
    why = _why_not(file, header)
    if why is not None:
        log.warning(f"{file}: {why}; it is filled anew and written again")
        return None
    count, px = header.num_images, header.cache_px
    sizes = np.memmap(file, np.int32, "r", HEADER_BYTES, (count, 2))
    return SavedShard(sizes, np.memmap(file, np.uint8, "r", HEADER_BYTES + 8 * count, (count, px, px, 3)))


def _why_not(file: Path, expected: Header) -> str | None:
    try:
        with file.open("rb") as opened:
            found = Header(**json.loads(opened.read(HEADER_BYTES)))
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, TypeError):
        return "its header cannot be read"
    if found.format_version != expected.format_version:
        return f"its format has version {found.format_version}, expected {expected.format_version}"
    if found.fingerprint != expected.fingerprint:
        return "it was made from other images, or from files that have changed since"
    for name, value in asdict(expected).items():
        if asdict(found)[name] != value:
            return f"{name} is {asdict(found)[name]}, expected {value}"
    size = file.stat().st_size
    if size != expected.file_bytes:
        return f"it has {size:,} bytes, expected {expected.file_bytes:,}: it is cut off"
    return None


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
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as opened:
            opened.write(json.dumps(asdict(header)).encode().ljust(HEADER_BYTES))
            opened.write(np.ascontiguousarray(sizes, dtype=np.int32).tobytes())
            for part in chunks(len(squares), header.cache_px**2 * 3):
                opened.write(squares[part].contiguous().cpu().numpy().data)
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
