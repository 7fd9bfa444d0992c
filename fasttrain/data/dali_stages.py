"""DALI pipelines that are fed by hand: which run takes which input is decided here and not by DALI.

Two of them, one after the other. ``headers`` reads files and their sizes; numpy then draws the boxes, the same
function as without DALI; ``pixels`` decodes the boxes and resizes them. Sizes, boxes and the output's size are
inputs of a run and not of a pipeline, so one pair serves every stage, training and validation, and a change of
px rebuilds nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia import dali
from nvidia.dali.pipeline import Pipeline

# DALI's stubs do not know all of its operators and types.
fn: Any = dali.fn
types: Any = dali.types

# Runs that a stage works on ahead of the one that is taken from it.
HEADER_DEPTH, PIXEL_DEPTH = 2, 3

# Share of the JPEGs that Hopper's hardware decoder takes, the rest is decoded by nvJPEG's software on cores of both
# kinds. On H200s with 16 CPU cores: short side 224 px, 33,000 images/s with 0 and with 0.65, 46,000 with 0.35; short
# side 320 px, 20,200 with 0 and 22,700 with 0.65. If neither decoder waits for the other, the best share is then 0.40
# and 0.42.
HARDWARE_DECODER_LOAD = 0.4


def nvjpeg_options(hw_decoder_load: float) -> dict[str, Any]:
    """Arguments of every decoder on a GPU."""
    # Colour is brought to full resolution by repetition, where libjpeg-turbo interpolates: nvJPEG before 13.2 warns
    # at each image that interpolation is wrong at the edges of a decoded region (DALI 2.4 with CUDA 13.0, H200).
    return {"hw_decoder_load": hw_decoder_load, "jpeg_fancy_upsampling": False}


class StageError(Exception):
    """A run failed; DALI's pipeline cannot be used again."""


class Stage:
    """A built pipeline and what is under way in it.

    Args:
        pipeline: Not yet built.
        example: An input that works, tried at once: a GPU or driver that cannot decode fails here.

    Raises:
        StageError: It does not work on this machine.
    """

    def __init__(self, pipeline: Pipeline, example: dict[str, Any]) -> None:
        self._pipeline = pipeline
        # DALI reads some inputs where they are: they must live until their run is over.
        self._inputs: deque[dict[str, Any]] = deque()
        self._depth: int = pipeline.prefetch_queue_depth
        try:
            pipeline.build()
            # The first schedule_run of a pipeline starts as many runs as its queue is deep, each later one
            # a single run.
            for _ in range(self._depth):
                self._put(example)
            pipeline.schedule_run()
        except Exception as error:
            raise StageError(reason(error)) from error
        self.in_flight = self._depth
        self.drain()

    @property
    def has_room(self) -> bool:
        """Whether another run can start."""
        return self.in_flight < self._depth

    def feed(self, inputs: dict[str, Any]) -> None:
        """Start a run. DALI checks its inputs here and decodes later."""
        self._put(inputs)
        try:
            self._pipeline.schedule_run()
        except Exception as error:
            raise StageError(reason(error)) from error
        self.in_flight += 1

    def take(self, stream: torch.cuda.Stream | None = None) -> tuple[Any, ...]:
        """Outputs of the oldest run; with ``stream`` ready for work that is queued there, else ready now."""
        try:
            outputs = self._pipeline.share_outputs(stream)
            self._pipeline.release_outputs()  # takes nothing away: DALI counts the references to an output
        except Exception as error:
            raise StageError(reason(error)) from error
        self.in_flight -= 1
        self._inputs.popleft()
        return tuple(outputs)

    def drain(self) -> None:
        """Let go of every run under way."""
        while self.in_flight:
            self.take()

    def _put(self, inputs: dict[str, Any]) -> None:
        for name, value in inputs.items():
            self._pipeline.feed_input(name, value)
        self._inputs.append(inputs)


def headers(*, batch_size: int, threads: int) -> Pipeline:
    """Paths (``path``: uint8 [n, length], absolute) to what is known of the files before they are decoded.

    Outputs: the files' bytes; int64 [n, 3] heights, widths, 3; uint8 [n, 2] first and last two bytes.
    """
    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=None,
        prefetch_queue_depth=HEADER_DEPTH,
        exec_dynamic=True,
    )
    with pipeline:
        # Not mapped: threads of one process wait for each other whenever pages are mapped in and out. Files of 10 kB in
        # the page cache, two CPU cores, 1, 2, 4 threads: 37,000, 36,000, 32,000 a second mapped; 54,000, 55,000,
        # 47,000 read.
        encoded = fn.io.file.read(fn.external_source(name="path", dtype=types.UINT8, ndim=1), dont_use_mmap=True)
        shapes = fn.peek_image_shape(encoded, adjust_orientation=False)
        pipeline.set_outputs(encoded, shapes, encoded[:2], encoded[-2:])
    return pipeline


def path_array(paths: Sequence[str]) -> NDArray[np.uint8]:
    """Paths as one array, uint8 [n, length]: filled up in front with slashes, which mean no more than one."""
    names = [os.fsencode(path) for path in paths]
    length = max(map(len, names))
    filled = b"".join(name.rjust(length, b"/") for name in names)
    return np.frombuffer(filled, dtype=np.uint8).reshape(len(names), length)


def pixels(
    *,
    batch_size: int,
    threads: int,
    device: torch.device,
    encoded: bool,
    hw_decoder_load: float = HARDWARE_DECODER_LOAD,
) -> Pipeline:
    """Boxes of images to uint8 [n, height, width, 3] on ``device``.

    Inputs: ``image`` (files' bytes, or with ``encoded`` false uint8 [n, h, w, 3]); ``start`` and ``shape``
    (int32 [n, 2], the part of a file that is decoded); ``roi_start``, ``roi_end`` (float32 [n, 2], the box in
    that part); ``size`` (float32 [n, 2], the output's sides). ``hw_decoder_load`` is the share of the files that
    a GPU's hardware decoder takes.
    """
    on_gpu = device.type == "cuda"
    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=_index(device) if on_gpu else None,
        prefetch_queue_depth=PIXEL_DEPTH,
        exec_dynamic=True,
    )
    with pipeline:
        if encoded:
            images = fn.decoders.image_slice(
                # Not copied: the bytes are the other pipeline's output, which stays as it is.
                fn.external_source(name="image", dtype=types.UINT8, ndim=1, no_copy=True),
                start=fn.external_source(name="start", dtype=types.INT32, ndim=1),
                shape=fn.external_source(name="shape", dtype=types.INT32, ndim=1),
                axes=[0, 1],
                output_type=types.RGB,
                adjust_orientation=False,  # EXIF is ignored, as torchvision ignores it
                device="mixed" if on_gpu else "cpu",
                **(nvjpeg_options(hw_decoder_load) if on_gpu else {}),
            )
        else:
            images = fn.external_source(name="image", dtype=types.UINT8, ndim=3, layout="HWC")
            images = images.gpu() if on_gpu else images
        pipeline.set_outputs(
            fn.resize(
                images,
                size=fn.external_source(name="size", dtype=types.FLOAT, ndim=1),
                roi_start=fn.external_source(name="roi_start", dtype=types.FLOAT, ndim=1),
                roi_end=fn.external_source(name="roi_end", dtype=types.FLOAT, ndim=1),
                interp_type=types.INTERP_LINEAR,
                antialias=True,
            )
        )
    return pipeline


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def reason(error: Exception) -> str:
    """What DALI says went wrong, without its traceback."""
    text = str(error)
    _, _, after = text.partition("encountered:")
    lines = [line.strip() for line in (after or text).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("C++ context", "Current pipeline"))]
    return " ".join(kept[:3]) or type(error).__name__
