"""Where the image cache goes and how much of it: free memory is measured, and the arithmetic is put into words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

# Shares of all memory that are left to training: on a device for what decoding and fragments still take (the
# cache is made after the warm-up, which holds what the largest stage needs), on the host for file pages and others.
DEVICE_RESERVE_FRAC = 0.1
HOST_RESERVE_FRAC = 0.25

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """A kind of memory.

    Attributes:
        name: In words.
        free, total: Bytes.
        reserve_frac: Share of the total that the cache leaves alone.
        sharers: Ranks that share it.
    """

    name: str
    free: int
    total: int
    reserve_frac: float
    sharers: int = 1

    @property
    def budget(self) -> int:
        """Bytes that one rank's cache may take."""
        return max(0, int(self.free - self.reserve_frac * self.total)) // self.sharers

    def __str__(self) -> str:
        shared = f" / {self.sharers} ranks" if self.sharers > 1 else ""
        reserve = self.reserve_frac * self.total
        return f"{self.name}: ({_size(self.free)} free - {_size(reserve)} reserved){shared} = {_size(self.budget)}"


@dataclass(frozen=True)
class Placement:
    """A rank's cache.

    Attributes:
        kind: ``gpu`` (memory of the device that trains) or ``host``.
        capacity: Images that it holds.
        words: What was measured and decided, one line.
    """

    kind: str
    capacity: int
    words: str


def device_memory(device: torch.device, sharers: int) -> Memory:
    """Memory of the device that trains; ``sharers`` counts where that is the host's."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory("GPU memory", free, total, DEVICE_RESERVE_FRAC)
    return host_memory(sharers)


def host_memory(sharers: int) -> Memory:
    """Memory of the machine, or of the container that this process is confined to."""
    fields = dict(line.split(":") for line in MEMINFO.read_text().splitlines()) if MEMINFO.is_file() else {}
    if not fields:
        return Memory("host memory (unknown)", 0, 0, HOST_RESERVE_FRAC, sharers)
    total, free = (1024 * int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    limit = _number(CGROUP / "memory.max")
    if limit is not None and limit < total:
        total, free = limit, min(free, limit - (_number(CGROUP / "memory.current") or 0))
    return Memory("host memory", free, total, HOST_RESERVE_FRAC, sharers)


def choose(kind: str, *, num_images: int, image_bytes: int, device: Memory, host: Memory) -> Placement:
    """Where one rank's images go.

    Args:
        kind: ``data.cache``. ``auto`` takes the device where all images fit there, else the host where they fit
            there, else the one that holds more of them.
        num_images: Of this rank's shards.
        image_bytes: Of one cached image.
        device, host: What there is.
    """
    fit = {name: min(num_images, memory.budget // image_bytes) for name, memory in (("gpu", device), ("host", host))}
    if kind == "auto":
        kind = "host" if fit["host"] > fit["gpu"] else "gpu"
    memory = device if kind == "gpu" else host
    rest = "" if fit[kind] == num_images else f"; the other {num_images - fit[kind]:,} are decoded in every epoch"
    words = (
        f"{fit[kind]:,} of {num_images:,} images in {memory.name}, {_size(fit[kind] * image_bytes)} of "
        f"{_size(num_images * image_bytes)}; {memory}{rest}"
    )
    return Placement(kind, fit[kind], words)


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:  # no such limit on this machine
        return None
    return int(text) if text.isdecimal() else None
