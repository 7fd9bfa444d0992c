"""The fast back end: NVIDIA DALI, nvJPEG on a GPU, libjpeg-turbo without one."""

from __future__ import annotations

import logging
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali
import torch
from numpy.typing import NDArray
from nvidia.dali.plugin.pytorch import feed_ndarray
from PIL import Image

from fasttrain.data.backend import Request
from fasttrain.data.dali_stages import (
    HARDWARE_DECODER_LOAD,
    Stage,
    StageError,
    headers,
    nvjpeg_options,
    path_array,
    pixels,
)
from fasttrain.data.dali_tuning import TUNE_SECONDS, fastest_load
from fasttrain.data.decode import decode_part, find_bad_files
from fasttrain.errors import DataError, MachineError, Problem

log = logging.getLogger("fasttrain")

STAND_IN_PX = 32
JPEG_START, JPEG_END = (0xFF, 0xD8), (0xFF, 0xD9)


class _Reader:
    """One open ``images`` call: requests not yet fed, and those fed whose images are not yet taken."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.requests = iter(requests)
        self.pending: deque[Request] = deque()
        self.fed_headers = 0  # of ``pending``, how many the first stage has had
        self.fed_pixels = 0  # and the second
        self.failed: Request | None = None  # a batch that failed without a bad file

    def request(self, index: int) -> Request | None:
        """Entry ``index`` of ``pending``, drawn from the requests if need be; None past the end."""
        while len(self.pending) <= index:
            drawn = next(self.requests, None)
            if drawn is None:
                return None
            self.pending.append(drawn)
        return self.pending[index]


class DaliBackend:
    """Owns the two DALI pipelines, from the run's start to ``close``.

    The pipelines serve one reader at a time. When another one asks, what is under way is dropped, and the
    first starts its pending batches again when its turn comes: nothing stale can come out.

    Args:
        device: Where the images go; on a GPU they are decoded there.
        workers: Threads of each pipeline.
        max_batch: Largest request, images.
        encoded: Whether the images are files; else arrays in memory, of which only the resizing is left.
        hw_decoder_load: Share of the files that a GPU's hardware decoder takes; None measures a few on the first
            batch that is asked for.

    Raises:
        MachineError: DALI does not work on this device.
    """

    name = "dali"

    def __init__(
        self,
        *,
        device: torch.device,
        workers: int,
        max_batch: int,
        encoded: bool,
        hw_decoder_load: float | None = HARDWARE_DECODER_LOAD,
    ) -> None:
        self._device, self._threads = device, max(1, workers)
        self._max_batch, self._encoded = max_batch, encoded
        self._load = HARDWARE_DECODER_LOAD if hw_decoder_load is None else hw_decoder_load
        self._tuned = hw_decoder_load is not None or not encoded
        self._folder = tempfile.TemporaryDirectory(prefix="fasttrain-dali-")
        self._stand_in = str(Path(self._folder.name) / "stand_in.jpg")
        Image.new("RGB", (STAND_IN_PX, STAND_IN_PX)).save(self._stand_in)
        self._pillow_only: set[str] = set()
        self._whole: set[str] = set()  # JPEGs that Pillow decodes although something follows their end
        self._owner: _Reader | None = None
        self._build()

    def images(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        """See ``Backend``."""
        reader = _Reader(requests)
        if not self._tuned:
            self._tune(reader)
        while True:
            try:
                item = self._next(reader)
            except StageError as error:
                self._recover(reader, error)
                continue
            if item is None:
                return
            yield item

    @property
    def decoder_options(self) -> dict[str, Any]:
        """Arguments of the decoder on a GPU."""
        return nvjpeg_options(self._load)

    def close(self) -> None:
        """See ``Backend``."""
        for stage in ("_headers", "_pixels"):
            vars(self).pop(stage, None)
        self._owner = None
        self._folder.cleanup()

    def _build(self) -> None:
        whole = np.full((1, 2), STAND_IN_PX)
        bytes_or_pixels: Any = (
            [np.fromfile(self._stand_in, dtype=np.uint8)]
            if self._encoded
            else np.zeros((1, STAND_IN_PX, STAND_IN_PX, 3), dtype=np.uint8)
        )
        example = {"image": bytes_or_pixels, **self._regions(np.zeros((1, 2)), whole, whole, whole)}
        self._example = example
        try:
            pipeline = headers(batch_size=self._max_batch, threads=self._threads)
            self._headers = Stage(pipeline, self._paths([self._stand_in]))
            self._pixels = self._pixel_stage(self._load)
        except StageError as error:
            raise self._broken(str(error)) from error
        self._owner = None

    def _pixel_stage(self, hw_decoder_load: float) -> Stage:
        pipeline = pixels(
            batch_size=self._max_batch,
            threads=self._threads,
            device=self._device,
            encoded=self._encoded,
            hw_decoder_load=hw_decoder_load,
        )
        return Stage(pipeline, self._example)

    def _tune(self, reader: _Reader) -> None:
        """Choose the hardware decoder's share on the first batch; training waits for it, so the clock has it too."""
        request = reader.request(0)
        if request is None:
            return
        self._tuned = True
        self._let_go()
        self._owner = None
        try:
            self._headers.feed(self._paths([request.split.paths[row] for row in request.rows.tolist()]))
            encoded, shapes, *_ = self._headers.take()
            inputs = {"image": encoded, **self._boxes(request, np.array(shapes.as_tensor())[:, :2])}
            self._load, found = fastest_load(
                inputs, len(request.rows), self._pixel_stage, self._device, seconds=TUNE_SECONDS
            )
            self._pixels = self._pixel_stage(self._load)
        except StageError:
            # A file of this batch is bad: it is met again below, and named there.
            self._build()
            return
        rates = ", ".join(f"{load:g}: {rate:,.0f}" for load, rate in sorted(found.items()))
        log.info(f"data.hw_decoder_load=auto: {self._load:g} (images/s of the first batch: {rates})")

    def _next(self, reader: _Reader) -> tuple[Request, torch.Tensor] | None:
        if self._owner is not reader:
            self._let_go()
            self._owner = reader
            reader.fed_headers = reader.fed_pixels = 0
        self._feed(reader)
        if not reader.fed_pixels:
            return None
        images = self._take(reader.pending[0])
        reader.fed_headers -= 1
        reader.fed_pixels -= 1
        return reader.pending.popleft(), images

    def _let_go(self) -> None:
        """Drop what is under way for another reader, bad files among it too: it will meet them again."""
        try:
            self._headers.drain()
            self._pixels.drain()
        except StageError:
            self._build()

    def _feed(self, reader: _Reader) -> None:
        """Keep both stages busy."""
        while True:
            while self._encoded and self._headers.has_room and (request := reader.request(reader.fed_headers)):
                self._headers.feed(self._paths([request.split.paths[row] for row in request.rows.tolist()]))
                reader.fed_headers += 1
            if not self._pixels.has_room or not (request := reader.request(reader.fed_pixels)):
                return
            image, sizes = self._source(request)
            self._pixels.feed({"image": image, **self._boxes(request, sizes)})
            reader.fed_pixels += 1
            if not self._encoded:
                reader.fed_headers = reader.fed_pixels

    def _source(self, request: Request) -> tuple[Any, NDArray[np.int64]]:
        """The images of a request as the second stage takes them, and their sizes, int64 [n, 2]."""
        if self._encoded:
            encoded, shapes, *ends = self._headers.take()
            self._check_ends(request, *(np.array(end.as_tensor()) for end in ends))
            return encoded, np.array(shapes.as_tensor())[:, :2]
        assert request.split.images is not None
        images = request.split.images[request.rows]
        return images, np.tile(np.array(images.shape[1:3], dtype=np.int64), (len(images), 1))

    def _check_ends(self, request: Request, first: NDArray[np.uint8], last: NDArray[np.uint8]) -> None:
        """Refuse JPEGs that are cut off, as every other back end does: nvJPEG fills what is missing with gray.

        Args:
            request: The batch.
            first, last: Two bytes of each file, uint8 [n, 2].

        Raises:
            DataError: Files that Pillow cannot decode to their end.
        """
        endless = (first == JPEG_START).all(axis=1) & (last != JPEG_END).any(axis=1)
        paths = [request.split.paths[row] for row in request.rows[endless].tolist()]
        unknown = [path for path in dict.fromkeys(paths) if path not in self._whole and path not in self._pillow_only]
        if problems := find_bad_files(unknown):
            raise DataError(problems)
        self._whole.update(unknown)

    def _boxes(self, request: Request, sizes: NDArray[np.int64]) -> dict[str, Any]:
        boxes = request.crop.boxes(sizes)
        output = np.broadcast_to(np.array([request.height, request.width]), sizes.shape)
        inputs = self._regions(boxes[:, :2], boxes[:, 2:], sizes, output)
        if request.flips is not None:
            # DALI mirrors a region that ends left of where it starts.
            left, right = inputs["roi_start"][:, 1], inputs["roi_end"][:, 1]
            left[request.flips], right[request.flips] = right[request.flips], left[request.flips]
        return inputs

    def _regions(
        self,
        top_left: NDArray[np.float64],
        bottom_right: NDArray[Any],
        sizes: NDArray[np.int64],
        output: NDArray[np.int64],
    ) -> dict[str, Any]:
        """Inputs of the second stage for boxes of images; all [n, 2], down and across, pixels."""
        inputs: dict[str, Any] = {"size": output.astype(np.float32)}
        start: NDArray[Any] = np.zeros_like(sizes)
        if self._encoded:
            # The antialiasing filter reaches one output pixel, at least one of the image, beyond the box.
            reach = np.ceil(np.maximum((bottom_right - top_left) / output, 1)) + 1
            start = np.maximum(np.floor(top_left) - reach, 0)
            end = np.minimum(np.ceil(bottom_right) + reach, sizes)
            inputs |= {"start": start.astype(np.int32), "shape": (end - start).astype(np.int32)}
        inputs["roi_start"] = (top_left - start).astype(np.float32)
        inputs["roi_end"] = (bottom_right - start).astype(np.float32)
        return {name: np.ascontiguousarray(values) for name, values in inputs.items()}

    def _paths(self, paths: list[str]) -> dict[str, Any]:
        """Input of the first stage; in place of files that DALI cannot read stands one that it can."""
        return {"path": path_array([self._stand_in if path in self._pillow_only else path for path in paths])}

    def _take(self, request: Request) -> torch.Tensor:
        """Images of the oldest run, copied into memory of torch's own."""
        on_gpu = self._device.type == "cuda"
        # The copy is queued behind DALI's work and before the training step that reads it, on one stream;
        # DALI's buffer goes back to its pool in the order of that stream, so nobody waits on the host.
        stream = torch.cuda.current_stream(self._device) if on_gpu else None
        output = self._pixels.take(stream)[0].as_tensor()
        shape = (len(request.rows), request.height, request.width, 3)
        images = torch.empty(shape, dtype=torch.uint8, device=self._device)
        feed_ndarray(output, images, cuda_stream=stream)
        if self._pillow_only and self._encoded:
            self._fill_in(request, images)
        return images

    def _fill_in(self, request: Request, images: torch.Tensor) -> None:
        """Decode with Pillow what DALI cannot."""
        for place, row in enumerate(request.rows.tolist()):
            if request.split.paths[row] in self._pillow_only:
                decoded = np.empty(images.shape, dtype=np.uint8)
                decode_part(request, slice(place, place + 1), decoded)
                images[place] = torch.from_numpy(decoded[place])

    def _recover(self, reader: _Reader, error: StageError) -> None:
        """After a failed run: build anew, name the bad files or find those that only Pillow reads.

        DALI may report a failure at an earlier batch than the file's, so all that was under way is looked at.
        Where nothing is wrong with any file, the batch is tried once more: a file system can hiccup.
        """
        self._build()
        if self._encoded:
            rows = ((request.split, row) for request in reader.pending for row in request.rows.tolist())
            paths = list(dict.fromkeys(split.paths[row] for split, row in rows))
            if problems := find_bad_files(paths):
                raise DataError(problems) from error
            unread = {path for path in paths if path not in self._pillow_only and not self._decodes(path)}
            self._pillow_only |= unread
            if unread:
                return
        if reader.failed is reader.pending[0]:
            raise self._broken(str(error)) from error
        reader.failed = reader.pending[0]

    def _decodes(self, path: str) -> bool:
        try:
            self._headers.feed(self._paths([path]))
            encoded, shapes, *_ = self._headers.take()
            sizes = np.array(shapes.as_tensor())[:, :2]
            self._pixels.feed({"image": encoded, **self._regions(np.zeros((1, 2)), sizes, sizes, sizes)})
            self._pixels.take()
        except StageError:
            self._build()
            return False
        return True

    def _broken(self, why: str) -> MachineError:
        fix = "data.backend=torchvision"
        if self._device.type == "cuda":
            fix += ", or a driver that fits DALI's package (nvidia-dali-cuda130 needs driver 580 or newer)"
        return MachineError(Problem(f"DALI {nvidia.dali.__version__} failed on {self._device}: {why}", fix))
