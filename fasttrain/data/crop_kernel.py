"""Triton kernels of the image cache: boxes drawn, and crops cut from cached images, on a GPU.

Each equals a function that runs anywhere: ``draw`` equals ``augment.RandomResizedCrop`` and ``draw_flips``, ``crop``
equals ``crop.crop_with_torch``. The tests run them in Triton's interpreter.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from fasttrain.data.augment import CROP_STREAM, CROP_TRIES, FLIP_STREAM, MAX_RATIO, MIN_RATIO, stream_key
from fasttrain.data.batch import to_device

DRAW_BLOCK = 128
# Output rows and columns of one program, and its warps: on one H200 6.2, 4.6 and 3.6 million crops/s from squares of
# 160 px to 96, 128 and 160 px, the fastest of 32 shapes and ways.
CROP_ROWS, CROP_COLUMNS, CROP_WARPS = 4, 32, 2


@triton.jit
def _mix(z):  # type: ignore[no-untyped-def]  # SplitMix64's finaliser, as augment._mix
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(rows, number):  # type: ignore[no-untyped-def]
    bits = _mix(rows + 0x9E3779B97F4A7C15 * number.to(tl.uint64))
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def _rint(x):  # type: ignore[no-untyped-def]  # to the nearest whole number, halves to the even one, for 0 <= x < 2^51
    return (x + 4503599627370496.0) - 4503599627370496.0


@triton.jit(do_not_specialize=["count", "height", "width", "inverted"])
def _draw_kernel(  # type: ignore[no-untyped-def]
    samples, sizes, keys, numbers, boxes, moves, count, height, width, inverted,
    FLIP: tl.constexpr, TRIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    sample = tl.load(samples + place, mask=inside, other=0).to(tl.uint64)
    image_height = tl.load(sizes + 2 * place, mask=inside, other=1).to(tl.float64)
    image_width = tl.load(sizes + 2 * place + 1, mask=inside, other=1).to(tl.float64)
    # float64 numbers come in memory: Triton hands over arguments and constants as float32.
    min_area, area_span = tl.load(numbers), tl.load(numbers + 1)
    log_min_ratio, log_ratio_span = tl.load(numbers + 2), tl.load(numbers + 3)
    min_ratio, max_ratio = tl.load(numbers + 4), tl.load(numbers + 5)
    rows = _mix(tl.load(keys).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15 * sample)
    side = tl.sqrt(image_height * image_width)
    box_width = tl.minimum(image_width, tl.maximum(_rint(image_height * max_ratio), 1.0))
    box_height = tl.minimum(image_height, tl.maximum(_rint(image_width / min_ratio), 1.0))
    found = place < 0
    for trial in range(TRIES):
        area = min_area + area_span * _uniform(rows, tl.full([BLOCK], trial + 1, tl.int64))
        draw = _uniform(rows, tl.full([BLOCK], trial + 1 + TRIES, tl.int64))
        ratio = tl.exp(log_min_ratio + log_ratio_span * draw)
        tried_width = tl.maximum(_rint(tl.sqrt(area * ratio) * side), 1.0)
        tried_height = tl.maximum(_rint(tl.sqrt(area / ratio) * side), 1.0)
        taken = (found == 0) & (tried_width <= image_width) & (tried_height <= image_height)
        box_width = tl.where(taken, tried_width, box_width)
        box_height = tl.where(taken, tried_height, box_height)
        found = found | taken
    down, across = image_height - box_height, image_width - box_width
    down_draw = _uniform(rows, tl.full([BLOCK], 2 * TRIES + 1, tl.int64))
    across_draw = _uniform(rows, tl.full([BLOCK], 2 * TRIES + 2, tl.int64))
    top = tl.where(found, tl.floor(down_draw * (down + 1.0)), tl.floor(down / 2.0))
    left = tl.where(found, tl.floor(across_draw * (across + 1.0)), tl.floor(across / 2.0))
    tl.store(boxes + 4 * place, (top * height / image_height).to(tl.float32), mask=inside)
    tl.store(boxes + 4 * place + 1, (left * width / image_width).to(tl.float32), mask=inside)
    tl.store(boxes + 4 * place + 2, (box_height * height / image_height).to(tl.float32), mask=inside)
    tl.store(boxes + 4 * place + 3, (box_width * width / image_width).to(tl.float32), mask=inside)
    flipped = tl.zeros([BLOCK], tl.int32)
    if FLIP:
        coin = _mix(tl.load(keys + 1).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15 * sample)
        heads = (_mix(coin + 0x9E3779B97F4A7C15) >> 63).to(tl.int32) == 0  # the draw is below a half
        flipped = heads.to(tl.int32) ^ inverted
    tl.store(moves + 4 * place, flipped, mask=inside)
    for other in tl.static_range(1, 4):
        tl.store(moves + 4 * place + other, tl.zeros([BLOCK], tl.int32), mask=inside)


def draw(
    seed: int,
    epoch: int,
    samples: torch.Tensor,
    sizes: torch.Tensor,
    *,
    min_area: float,
    flip: str,
    cached_size: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random resized crops and flips of samples.

    Args:
        seed, epoch: Of the run.
        samples: Indices in the training split, int64 [n], on the device.
        sizes: Heights and widths of the images, int32 [n, 2], on the device.
        min_area: Smallest box as a share of the image's area.
        flip: ``data.flip``.
        cached_size: Height and width of the cached images: the boxes are in their pixels.

    Returns:
        Boxes and moves as in ``crop.Draws``. Flips are those of ``augment.draw_flips``; boxes are those of
        ``augment.RandomResizedCrop`` but where another rounding of ``exp``, or of a product and a sum at once, moves
        a side by one pixel of the image: fewer than one in 10,000.
    """
    alternating = flip == "alternating"
    keys = [stream_key(seed, CROP_STREAM, epoch), stream_key(seed, FLIP_STREAM, 0 if alternating else epoch)]
    log_min, log_span = np.log(MIN_RATIO), np.log(MAX_RATIO / MIN_RATIO)
    numbers = [min_area, 1 - min_area, log_min, log_span, MIN_RATIO, MAX_RATIO]
    device, count = samples.device, len(samples)
    boxes = torch.empty(count, 4, dtype=torch.float32, device=device)
    moves = torch.empty(count, 4, dtype=torch.int32, device=device)
    _draw_kernel[(triton.cdiv(count, DRAW_BLOCK),)](
        samples, sizes,
        to_device(np.array(keys, dtype=np.uint64).view(np.int64), device),
        to_device(np.array(numbers, dtype=np.float64), device),
        boxes, moves, count, *cached_size, int(alternating and epoch % 2 == 1),
        FLIP=flip != "none", TRIES=CROP_TRIES, BLOCK=DRAW_BLOCK,
    )  # fmt: skip
    return boxes, moves


@triton.jit
def _mirrored(index, size):  # type: ignore[no-untyped-def]
    index = tl.abs(index)
    return tl.where(index >= size, 2 * (size - 1) - index, index)


@triton.jit
def _weight(tap, centre, reach, size):  # type: ignore[no-untyped-def]  # of the triangle; none outside the image
    weight = tl.maximum(1.0 - tl.abs(tap.to(tl.float32) + 0.5 - centre) / reach, 0.0)
    return tl.where((tap >= 0) & (tap < size), weight, 0.0)


# A slice of an epoch's slots may begin anywhere: no second kernel for those that are aligned.
@triton.jit(
    do_not_specialize=["height", "width", "px", "tiles_across"], do_not_specialize_on_alignment=["slots", "places"]
)
def _crop_kernel(  # type: ignore[no-untyped-def]
    source, slots, boxes, moves, places, output, height, width, px, tiles_across,
    mean_0, mean_1, mean_2, std_0, std_1, std_2,
    SCATTERED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    image, tile = tl.program_id(0), tl.program_id(1)
    place = image.to(tl.int64)
    if SCATTERED:
        place = tl.load(places + image)
    top, left = tl.load(boxes + 4 * image), tl.load(boxes + 4 * image + 1)
    step_down, step_across = tl.load(boxes + 4 * image + 2) / px, tl.load(boxes + 4 * image + 3) / px
    flipped, down, across = tl.load(moves + 4 * image), tl.load(moves + 4 * image + 1), tl.load(moves + 4 * image + 2)
    pixels = source + tl.load(slots + image) * height * width * 3

    row = (tile // tiles_across) * ROWS + tl.arange(0, ROWS)
    column = (tile % tiles_across) * COLUMNS + tl.arange(0, COLUMNS)
    from_row, from_column = _mirrored(row - down, px), _mirrored(column - across, px)
    from_column = tl.where(flipped != 0, px - 1 - from_column, from_column)

    reach_y, reach_x = tl.maximum(step_down, 1.0), tl.maximum(step_across, 1.0)
    centre_y = top + (from_row.to(tl.float32) + 0.5) * step_down
    centre_x = left + (from_column.to(tl.float32) + 0.5) * step_across
    first_y = tl.floor(centre_y - reach_y + 0.5).to(tl.int32)
    first_x = tl.floor(centre_x - reach_x + 0.5).to(tl.int32)
    taps_y, taps_x = tl.ceil(2.0 * reach_y).to(tl.int32), tl.ceil(2.0 * reach_x).to(tl.int32)

    sum_x = tl.zeros([COLUMNS], tl.float32)
    for tap in range(taps_x):
        sum_x += _weight(first_x + tap, centre_x, reach_x, width)
    sum_y = tl.zeros([ROWS], tl.float32)
    red = tl.zeros([ROWS, COLUMNS], tl.float32)
    green = tl.zeros([ROWS, COLUMNS], tl.float32)
    blue = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tap_y in range(taps_y):
        y = first_y + tap_y
        weight_y = _weight(y, centre_y, reach_y, height)
        sum_y += weight_y
        line = tl.minimum(tl.maximum(y, 0), height - 1) * width * 3
        for tap_x in range(taps_x):
            x = first_x + tap_x
            weight = weight_y[:, None] * _weight(x, centre_x, reach_x, width)[None, :]
            pixel = pixels + (line[:, None] + (tl.minimum(tl.maximum(x, 0), width - 1) * 3)[None, :])
            red += weight * tl.load(pixel).to(tl.float32)
            green += weight * tl.load(pixel + 1).to(tl.float32)
            blue += weight * tl.load(pixel + 2).to(tl.float32)
    norm = 1.0 / (sum_y[:, None] * sum_x[None, :])
    start = output + place * px * px * 3 + (row[:, None] * px + column[None, :]) * 3
    inside = (row < px)[:, None] & (column < px)[None, :]
    dtype = output.dtype.element_ty
    tl.store(start, ((red * norm - mean_0) / std_0).to(dtype), mask=inside)
    tl.store(start + 1, ((green * norm - mean_1) / std_1).to(dtype), mask=inside)
    tl.store(start + 2, ((blue * norm - mean_2) / std_2).to(dtype), mask=inside)


def crop(
    source: torch.Tensor,
    slots: torch.Tensor,
    boxes: torch.Tensor,
    moves: torch.Tensor,
    output: torch.Tensor,
    *,
    places: torch.Tensor | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> None:
    """See ``crop.crop_with_torch``, whose arguments these are."""
    px = output.shape[1]
    tiles_across = triton.cdiv(px, CROP_COLUMNS)
    grid = (len(slots), triton.cdiv(px, CROP_ROWS) * tiles_across)
    _crop_kernel[grid](
        source, slots, boxes, moves, output if places is None else places, output,
        source.shape[1], source.shape[2], px, tiles_across, *mean, *std,
        SCATTERED=places is not None, ROWS=CROP_ROWS, COLUMNS=CROP_COLUMNS, num_warps=CROP_WARPS,
    )  # fmt: skip
