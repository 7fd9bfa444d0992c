"""The memory of one rank's cached images, in a device or on its host, and what is known about each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.data.batch import to_device
from fasttrain.data.cache_memory import Placement

# Batches gathered from host memory ahead of the one that is cropped.
BATCHES_AHEAD = 2
# Images of one gathering task.
IMAGES_PER_TASK = 64
# Filled batches on their way to the host before the host waits for the oldest.
COPIES_UNDER_WAY = 4


class ImageStore:
    """Owns the cached images of one rank, filled once and then only read.

    Its images are numbered by ``local``: their places among all images of this rank's shards. The first
    ``capacity`` of them have room.

    Args:
        placement: Where, and how many.
        num_images: Of this rank's shards.
        size: Height and width of a cached image.
        device: That crops are made on.
        workers: Threads that gather from the host's memory.

    Attributes:
        filled: Which images are there, bool [num_images].
        sizes: Heights and widths of the images before they became cached ones, int32 [num_images, 2].
    """

    def __init__(
        self, placement: Placement, num_images: int, size: tuple[int, int], device: torch.device, *, workers: int
    ) -> None:
        self.placement, self.device, self.size = placement, device, size
        self.filled = np.zeros(num_images, dtype=np.bool_)
        self.sizes = np.ones((num_images, 2), dtype=np.int32)
        on_gpu = placement.kind == "gpu"
        # On the host it need not be pinned, which takes minutes and up to twice the memory: what is gathered is.
        where = device if on_gpu else torch.device("cpu")
        self.images = torch.empty((placement.capacity, *size, 3), dtype=torch.uint8, device=where)
        self._threads = None if on_gpu else ThreadPoolExecutor(max(1, workers), "gather")
        self._copies = torch.cuda.Stream(device) if not on_gpu and device.type == "cuda" else None
        self._arriving: deque[tuple[torch.cuda.Event, torch.Tensor, NDArray[np.int64]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether every image of the rank is there."""
        return bool(self.filled.all())

    @property
    def nbytes(self) -> int:
        """Memory of the images."""
        return self.images.nbytes

    def put(self, local: NDArray[np.int64], images: torch.Tensor, sizes: NDArray[np.int64]) -> None:
        """Keep those images for which there is room and that are not there yet: what was once read never changes.

        Args:
            local: Their numbers, int64 [n].
            images: On the device or where the cache is, uint8 [n, height, width, 3].
            sizes: Heights and widths before, int64 [n, 2].
        """
        self.sizes[local] = sizes
        room = np.flatnonzero((local < self.placement.capacity) & ~self.filled[local])
        if not len(room):
            return
        if len(room) < len(local):
            images = images[to_device(room, images.device)]
        kept = local[room]
        if self.images.device == images.device:
            self.images[to_device(kept, images.device)] = images
            self.filled[kept] = True
            return
        arriving = torch.empty(images.shape, dtype=torch.uint8, pin_memory=True)
        arriving.copy_(images, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._arriving.append((event, arriving, kept))
        self._settle(COPIES_UNDER_WAY)

    def settle(self) -> None:
        """Wait for what is on its way to the host: ``filled`` is true afterwards."""
        self._settle(0)

    def _settle(self, most: int) -> None:
        while len(self._arriving) > most:
            event, arriving, kept = self._arriving.popleft()
            event.synchronize()
            self.images[torch.from_numpy(kept)] = arriving
            self.filled[kept] = True

    def batches(self, wanted: Iterable[NDArray[np.int64]]) -> Iterator[torch.Tensor]:
        """Images of one batch after the other from the host's memory, gathered ahead, on the device.

        Args:
            wanted: Numbers of filled images, int64 [n] each.

        Yields:
            uint8 [n, height, width, 3].
        """
        assert self._threads is not None
        ahead: deque[tuple[torch.Tensor, list[Future[None]]]] = deque()
        try:
            for local in wanted:
                ahead.append(self._gather(local, self._threads))
                if len(ahead) > BATCHES_AHEAD:
                    yield self._sent(*ahead.popleft())
            while ahead:
                yield self._sent(*ahead.popleft())
        finally:
            for _, tasks in ahead:
                for task in tasks:
                    task.cancel()

    def _gather(self, local: NDArray[np.int64], threads: ThreadPoolExecutor) -> tuple[torch.Tensor, list[Future[None]]]:
        # Pinned memory comes from torch's pool, which hands it out again only when its copy is done.
        gathered = torch.empty((len(local), *self.size, 3), dtype=torch.uint8, pin_memory=self._copies is not None)
        source, target = self.images.numpy(), gathered.numpy()

        def gather(part: slice) -> None:
            # "clip" writes straight into the target; the numbers are in range.
            np.take(source, local[part], axis=0, out=target[part], mode="clip")

        parts = [slice(i, i + IMAGES_PER_TASK) for i in range(0, len(local), IMAGES_PER_TASK)]
        return gathered, [threads.submit(gather, part) for part in parts]

    def _sent(self, gathered: torch.Tensor, tasks: list[Future[None]]) -> torch.Tensor:
        for task in tasks:
            task.result()
        if self._copies is None:
            return gathered
        # On a stream of its own: it runs beside the training step before it.
        with torch.cuda.stream(self._copies):
            images = gathered.to(self.device, non_blocking=True)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._copies)
        images.record_stream(current)
        return images

    def close(self) -> None:
        """Give the memory back; not to be used again."""
        self._arriving.clear()
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
        self.images = torch.empty(0, dtype=torch.uint8)
