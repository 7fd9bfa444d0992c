"""The fast back end: NVIDIA DALI, nvJPEG on a GPU, libjpeg-turbo without one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import nvidia.dali
import torch
from numpy.typing import NDArray
from nvidia.dali.plugin.pytorch import feed_ndarray

from fasttrain.data.backend import Request
from fasttrain.data.dali_files import STAND_IN_PX, OddFiles
from fasttrain.data.dali_inputs import box_inputs, whole_inputs
from fasttrain.data.dali_stages import (
    HARDWARE_DECODER_LOAD,
    Stage,
    StageError,
    headers,
    nvjpeg_options,
    path_array,
    pixels,
)
from fasttrain.data.dali_tuning import FEW_THREADS, TIMED_FILES, TUNE_SECONDS, fastest_load, reading_threads
from fasttrain.data.decode import find_bad_files
from fasttrain.errors import DataError, MachineError, Problem

log = logging.getLogger("fasttrain")


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
        workers: Threads that decode; as many read, where files do not come at once.
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
        self._reading_threads = min(FEW_THREADS, self._threads)
        self._odd = OddFiles()
        self._owner: _Reader | None = None
        self._build()

    def images(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        """See ``Backend``."""
        reader = _Reader(requests)
        if self._encoded:
            self._suit_reading(reader)
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
        self._odd.close()

    def _build(self) -> None:
        whole = np.full((1, 2), STAND_IN_PX)
        bytes_or_pixels: Any = (
            [np.fromfile(self._odd.stand_in, dtype=np.uint8)]
            if self._encoded
            else np.zeros((1, STAND_IN_PX, STAND_IN_PX, 3), dtype=np.uint8)
        )
        example = {"image": bytes_or_pixels, **whole_inputs(whole, encoded=self._encoded)}
        self._example = example
        try:
            self._headers = self._header_stage()
            self._pixels = self._pixel_stage(self._load)
        except StageError as error:
            raise self._broken(str(error)) from error
        self._owner = None

    def _header_stage(self) -> Stage:
        pipeline = headers(batch_size=self._max_batch, threads=self._reading_threads)
        return Stage(pipeline, {"path": path_array([self._odd.stand_in])})

    def _pixel_stage(self, hw_decoder_load: float) -> Stage:
        pipeline = pixels(
            batch_size=self._max_batch,
            threads=self._threads,
            device=self._device,
            encoded=self._encoded,
            hw_decoder_load=hw_decoder_load,
        )
        return Stage(pipeline, self._example)

    def _suit_reading(self, reader: _Reader) -> None:
        """Read with as many threads as the first files want: they may lie elsewhere now, or in the page cache."""
        request = reader.request(0)
        if request is None:
            return
        paths = [request.split.paths[row] for row in request.rows[:TIMED_FILES].tolist()]
        threads = reading_threads(paths, self._threads)
        if threads != self._reading_threads:
            self._reading_threads = threads
            self._let_go()
            self._owner = None
            try:
                self._headers = self._header_stage()
            except StageError as error:
                raise self._broken(str(error)) from error

    def _tune(self, reader: _Reader) -> None:
        """Choose the hardware decoder's share on the first batch; training waits for it, so the clock has it too."""
        request = reader.request(0)
        if request is None:
            return
        self._tuned = True
        self._let_go()
        self._owner = None
        try:
            self._headers.feed({"path": path_array(self._odd.for_dali(request))})
            encoded, shapes, *_ = self._headers.take()
            inputs = {"image": encoded, **box_inputs(request, np.array(shapes.as_tensor())[:, :2], encoded=True)}
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
                self._headers.feed({"path": path_array(self._odd.for_dali(request))})
                reader.fed_headers += 1
            if not self._pixels.has_room or not (request := reader.request(reader.fed_pixels)):
                return
            image, sizes = self._source(request)
            self._pixels.feed({"image": image, **box_inputs(request, sizes, encoded=self._encoded)})
            reader.fed_pixels += 1
            if not self._encoded:
                reader.fed_headers = reader.fed_pixels

    def _source(self, request: Request) -> tuple[Any, NDArray[np.int64]]:
        """The images of a request as the second stage takes them, and their sizes, int64 [n, 2]."""
        if self._encoded:
            encoded, shapes, *ends = self._headers.take()
            self._odd.check_ends(request, *(np.array(end.as_tensor()) for end in ends))
            return encoded, np.array(shapes.as_tensor())[:, :2]
        assert request.split.images is not None
        images = request.split.images[request.rows]
        return images, np.tile(np.array(images.shape[1:3], dtype=np.int64), (len(images), 1))

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
        if self._encoded:
            self._odd.fill_in(request, images)
        return images

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
            unread = [path for path in paths if not self._odd.is_left_to_pillow(path) and not self._decodes(path)]
            self._odd.leave_to_pillow(unread)
            if unread:
                return
        if reader.failed is reader.pending[0]:
            raise self._broken(str(error)) from error
        reader.failed = reader.pending[0]

    def _decodes(self, path: str) -> bool:
        try:
            self._headers.feed({"path": path_array([path])})
            encoded, shapes, *_ = self._headers.take()
            sizes = np.array(shapes.as_tensor())[:, :2]
            self._pixels.feed({"image": encoded, **whole_inputs(sizes, encoded=True)})
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
