"""The back end of any machine: Pillow in threads, the calls that torchvision's transforms make on its images.

Threads and not processes: Pillow lets go of the interpreter while it decodes and resizes, and threads need no
shared memory, no copies and no second import of torch. One image costs about 0.1 ms of the interpreter's own
time, so some 8,000 images/s are its ceiling; DALI's is far above.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch.nn import functional

from fasttrain.data.augment import flip_images
from fasttrain.data.backend import Request
from fasttrain.data.decode import decode_part
from fasttrain.data.preprocess import CentreCrop

# Images of one task: small enough to keep all threads busy to the end of a batch.
IMAGES_PER_TASK = 16
# Batches decoded ahead of the one that is being trained on.
BATCHES_AHEAD = 2

_Decoding = tuple[torch.Tensor, list["Future[None]"]]


class TorchvisionBackend:
    """Owns the decoding threads, from the run's start to ``close``.

    Args:
        device: Where the images go.
        workers: Threads; 0 decodes in the calling thread, without reading ahead.
    """

    name = "torchvision"

    def __init__(self, *, device: torch.device, workers: int) -> None:
        self._device = device
        self._threads = ThreadPoolExecutor(workers, "decode") if workers else None

    def images(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        """See ``Backend``."""
        ahead: deque[tuple[Request, _Decoding]] = deque()
        depth = BATCHES_AHEAD if self._threads else 0
        try:
            for request in requests:
                ahead.append((request, self._start(request)))
                if len(ahead) > depth:
                    yield self._finish(*ahead.popleft())
            while ahead:
                yield self._finish(*ahead.popleft())
        finally:
            for _, (_, tasks) in ahead:
                for task in tasks:
                    task.cancel()

    def close(self) -> None:
        """See ``Backend``."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def _start(self, request: Request) -> _Decoding:
        if _is_plain_array(request):
            return self._resize_array(request), []
        num, shape = len(request.rows), (request.num_images, request.height, request.width, 3)
        # Pinned memory, so that the copy to the device need not be waited for; torch keeps it from being
        # used again before that copy is done.
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        parts = [slice(i, min(i + IMAGES_PER_TASK, num)) for i in range(0, num, IMAGES_PER_TASK)]
        if self._threads:
            return images, [self._threads.submit(decode_part, request, part, images.numpy()) for part in parts]
        for part in parts:
            decode_part(request, part, images.numpy())
        return images, []

    def _finish(self, request: Request, decoding: _Decoding) -> tuple[Request, torch.Tensor]:
        images, tasks = decoding
        for task in tasks:
            task.result()
        return request, images.to(self._device, non_blocking=True)

    def _resize_array(self, request: Request) -> torch.Tensor:
        """Images in memory, all of one size and with the same box: one operation for the batch."""
        assert request.split.images is not None
        assert isinstance(request.crop, CentreCrop)
        sizes = np.array([request.split.images.shape[1:3]], dtype=np.int64)
        ((height, width),) = request.crop.resized(sizes)
        images = torch.from_numpy(request.split.images[request.rows]).to(self._device)
        if (height, width) != images.shape[1:3]:
            pixels = functional.interpolate(
                images.permute(0, 3, 1, 2).to(torch.float32),
                (int(height), int(width)),
                mode="bilinear",
                antialias=True,
            )
            images = pixels.round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        top, left = round((height - request.height) / 2), round((width - request.width) / 2)
        images = images[:, top : top + request.height, left : left + request.width].contiguous()
        if request.flips is None:
            return images
        return flip_images(images, torch.from_numpy(request.flips).to(self._device))


def _is_plain_array(request: Request) -> bool:
    return request.split.images is not None and isinstance(request.crop, CentreCrop) and request.policy is None
