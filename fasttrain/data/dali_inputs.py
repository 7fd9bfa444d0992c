"""What DALI's second stage is told of each image: the box, the part of the file that is decoded, the output's size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasttrain.data.backend import Request


def box_inputs(request: Request, sizes: NDArray[np.int64], *, encoded: bool) -> dict[str, NDArray[Any]]:
    """Inputs for the boxes that a request draws in images of ``sizes``, int64 [n, 2], heights and widths."""
    boxes = request.crop.boxes(sizes)
    output = np.broadcast_to(np.array([request.height, request.width]), sizes.shape)
    inputs = region_inputs(boxes[:, :2], boxes[:, 2:], sizes, output, encoded=encoded)
    if request.flips is not None:
        # DALI mirrors a region that ends left of where it starts.
        left, right = inputs["roi_start"][:, 1], inputs["roi_end"][:, 1]
        left[request.flips], right[request.flips] = right[request.flips], left[request.flips]
    return inputs


def region_inputs(
    top_left: NDArray[Any],
    bottom_right: NDArray[Any],
    sizes: NDArray[np.int64],
    output: NDArray[np.int64],
    *,
    encoded: bool,
) -> dict[str, NDArray[Any]]:
    """Inputs for boxes of images.

    Args:
        top_left, bottom_right: The boxes, [n, 2], down and across, pixels.
        sizes: Of the images, [n, 2].
        output: Sides of what comes out, [n, 2].
        encoded: Whether the images are files, of which only a part is decoded.
    """
    inputs: dict[str, Any] = {"size": output.astype(np.float32)}
    start: NDArray[Any] = np.zeros_like(sizes)
    if encoded:
        # The antialiasing filter reaches one output pixel, at least one of the image, beyond the box.
        reach = np.ceil(np.maximum((bottom_right - top_left) / output, 1)) + 1
        start = np.maximum(np.floor(top_left) - reach, 0)
        end = np.minimum(np.ceil(bottom_right) + reach, sizes)
        inputs |= {"start": start.astype(np.int32), "shape": (end - start).astype(np.int32)}
    inputs["roi_start"] = (top_left - start).astype(np.float32)
    inputs["roi_end"] = (bottom_right - start).astype(np.float32)
    return {name: np.ascontiguousarray(values) for name, values in inputs.items()}


def whole_inputs(sizes: NDArray[np.int64], *, encoded: bool) -> dict[str, NDArray[Any]]:
    """Inputs for whole images of ``sizes``, int64 [n, 2], which keep them."""
    return region_inputs(np.zeros(sizes.shape), sizes, sizes, sizes, encoded=encoded)
