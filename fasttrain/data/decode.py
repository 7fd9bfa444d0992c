"""Images from files or arrays to pixels, with Pillow: whole batches, their sizes, and which files are bad."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fasttrain.data.backend import Request
from fasttrain.data.image_file import explained, image_size, open_image, to_rgb
from fasttrain.data.scan import Split
from fasttrain.errors import DataError, Problem

# Threads that read the headers of a split: a network file system answers many at once.
HEADER_THREADS = 16
# Bad files named in one error.
MAX_NAMED = 5


def image_sizes(split: Split) -> NDArray[np.int64]:
    """Heights and widths of all images of a split, int64 [n, 2]; files by their headers, several at once."""
    if split.images is not None:
        return np.tile(np.array(split.images.shape[1:3], dtype=np.int64), (len(split.images), 1))
    with ThreadPoolExecutor(HEADER_THREADS) as threads:
        sizes = list(threads.map(image_size, split.paths, chunksize=64))
    return np.array(sizes, dtype=np.int64).reshape(-1, 2)


def decode_part(request: Request, part: slice, output: NDArray[np.uint8]) -> None:
    """Decode, crop, resize, mirror and augment the images ``part`` of a request into the same rows of ``output``.

    Args:
        request: The batch.
        part: Which of its images.
        output: uint8 [request.num_images, request.height, request.width, 3]; the first views of all images, then
            the second ones, and so on.

    Raises:
        DataError: A file that cannot be decoded.
    """
    rows = request.rows[part].tolist()
    if request.split.images is not None:
        images = [Image.fromarray(request.split.images[row]) for row in rows]
    else:
        images = [open_image(request.split.paths[row]) for row in rows]
    sizes = np.array([(image.height, image.width) for image in images], dtype=np.int64)
    boxes = request.crop.boxes(sizes, part)
    size = (request.width, request.height)
    for place, (image, (top, left, bottom, right)) in enumerate(zip(images, boxes, strict=True), part.start):
        with image:
            path = "" if request.split.images is not None else request.split.paths[request.rows[place]]
            rgb = explained(path, partial(to_rgb, image))
            resized = rgb.resize(size, Image.Resampling.BILINEAR, box=(left, top, right, bottom))
            if request.flips is not None and request.flips[place]:
                resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            views = [resized] if request.policy is None else request.policy.views(resized, place)
            for number, view in enumerate(views):
                output[number * len(request.rows) + place] = np.asarray(view)


def find_bad_files(paths: list[str]) -> list[Problem]:
    """Decode whole files and say which cannot be, and why."""

    def problems_of(path: str) -> list[Problem]:
        try:
            with open_image(path) as image:
                explained(path, partial(to_rgb, image))
        except DataError as error:
            return error.problems
        return []

    with ThreadPoolExecutor(HEADER_THREADS) as threads:
        found = [problem for problems in threads.map(problems_of, paths) for problem in problems]
    rest = len(found) - MAX_NAMED
    return found if rest <= 0 else [*found[:MAX_NAMED], Problem(f"and {rest} more files of the same batch")]
