"""DALI without fasttrain: pipelines as its manual writes them, to be measured beside the project's own path.

Random crops and order are DALI's own here, and an epoch's last batch is padded: the same amount of work, not the
same pixels.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia import dali
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from fasttrain.data.augment import MAX_RATIO, MIN_RATIO
from fasttrain.data.dali_stages import HEADER_DEPTH, Stage, headers, path_array
from fasttrain.data.scan import Split

# DALI's stubs do not know all of its operators and types.
fn: Any = dali.fn
types: Any = dali.types

# DALI's own default, which its manual keeps.
QUEUE_DEPTH = 2


def training_batches(
    split: Split, *, px: int, batch: int, min_area: float, device: torch.device, threads: int, decoder: dict[str, Any]
) -> Generator[int, None, None]:
    """Read, decode a random crop, resize, mirror; uint8 tensors on the device, without end.

    Args:
        split: Files and labels.
        px: Side of the output.
        batch: Images at once.
        min_area: Smallest crop as a share of the image's area.
        device: Where images are decoded.
        threads: Of the pipeline.
        decoder: Further arguments of the decoder on a GPU, the same as the project's own.
    """
    on_gpu = device.type == "cuda"
    pipeline = Pipeline(
        batch_size=batch,
        num_threads=threads,
        device_id=device.index or 0 if on_gpu else None,
        prefetch_queue_depth=QUEUE_DEPTH,
        exec_dynamic=True,
    )
    with pipeline:
        encoded, labels = fn.readers.file(
            files=list(split.paths), labels=split.labels.tolist(), random_shuffle=True, name="files"
        )
        images = fn.decoders.image_random_crop(
            encoded,
            device="mixed" if on_gpu else "cpu",
            output_type=types.RGB,
            random_area=[min_area, 1.0],
            random_aspect_ratio=[MIN_RATIO, MAX_RATIO],
            num_attempts=10,
            **(decoder if on_gpu else {}),
        )
        images = fn.resize(images, size=[px, px], interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        pipeline.set_outputs(images, labels)
    batches = DALIGenericIterator(
        [pipeline],
        ["images", "labels"],
        reader_name="files",
        auto_reset=True,
        last_batch_policy=LastBatchPolicy.FILL,
    )
    while True:
        # It resets itself at the end of an epoch; ``for`` would ask it to once more, which it refuses with a warning.
        with contextlib.suppress(StopIteration):
            while True:
                yield len(next(batches)[0]["images"])


def decoded_batches(
    encoded: list[list[bytes]],
    *,
    min_area: float | None,
    device: torch.device,
    threads: int,
    decoder: dict[str, Any],
) -> Generator[int, None, None]:
    """Images out of bytes that lie in memory, left where they are decoded, without end.

    Args:
        encoded: Batches of files.
        min_area: Decode random crops of at least this share of the area; None for whole images.
        device, threads, decoder: As for ``training_batches``.
    """
    on_gpu = device.type == "cuda"
    arrays = [[np.frombuffer(content, dtype=np.uint8) for content in batch] for batch in encoded]
    pipeline = Pipeline(
        batch_size=len(arrays[0]),
        num_threads=threads,
        device_id=device.index or 0 if on_gpu else None,
        prefetch_queue_depth=QUEUE_DEPTH,
        exec_dynamic=True,
    )
    with pipeline:
        source = fn.external_source(source=itertools.cycle(arrays), batch=True, dtype=types.UINT8, ndim=1)
        options = {"device": "mixed" if on_gpu else "cpu", "output_type": types.RGB, **(decoder if on_gpu else {})}
        if min_area is None:
            images = fn.decoders.image(source, **options)
        else:
            ratio = [MIN_RATIO, MAX_RATIO]
            images = fn.decoders.image_random_crop(
                source, random_area=[min_area, 1.0], random_aspect_ratio=ratio, num_attempts=10, **options
            )
        pipeline.set_outputs(images)
    pipeline.build()
    while True:
        (images,) = pipeline.run()
        yield len(images)


def header_batches(
    split: Split, rows: Iterator[NDArray[np.int64]], *, batch: int, threads: int
) -> Generator[int, None, None]:
    """Files' bytes and sizes by the project's own first pipeline, without end."""
    inputs = ({"path": path_array([split.paths[row] for row in part.tolist()])} for part in rows)
    first = next(inputs)
    stage = Stage(headers(batch_size=batch, threads=threads), first)
    for _ in range(HEADER_DEPTH):
        stage.feed(next(inputs))
    while True:
        stage.take()
        stage.feed(next(inputs))
        yield batch
