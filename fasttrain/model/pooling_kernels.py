# mypy: disallow-untyped-defs=False
"""Triton kernels of max-pooling 3x3, stride 2, padding 1, over channels_last memory.

A program takes one row of windows, ``BLOCK_COLUMNS`` of them side by side and ``BLOCK_CHANNELS`` channels of each. The
forward keeps, in a byte, which of its nine pixels each window took; the backward then writes each pixel once, from the
at most four windows that hold it, instead of searching them by index.

With ``NORM`` the pixels are normalised and cut off at zero (BatchNorm and ReLU) as they are read, and the backward
writes the gradient of what was before the normalisation.

Window (i, j) holds the rows 2i-1, 2i, 2i+1 and columns likewise; its pixels are numbered 0 to 8 row by row. Shapes are
constants of compilation: masks and offsets then keep the alignment that makes wide accesses.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pool(
    images,
    mean,
    scale,
    bias,
    pooled,
    winners,
    picked,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Largest value of each window, its pixel's number and, with NORM, that pixel before the normalisation."""
    WINDOW_ROWS: tl.constexpr = (HEIGHT + 1) // 2
    WINDOW_COLUMNS: tl.constexpr = (WIDTH + 1) // 2
    window_row = tl.program_id(0).to(tl.int64)
    i = (window_row % WINDOW_ROWS).to(tl.int32)
    j = (tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS))[:, None]
    channel = (tl.program_id(2) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS))[None, :]
    inside = (j < WINDOW_COLUMNS) & (channel < CHANNELS)
    image = images + window_row // WINDOW_ROWS * (HEIGHT * WIDTH * CHANNELS)
    if NORM:
        channel_mean = tl.load(mean + channel, mask=channel < CHANNELS)
        channel_scale = tl.load(scale + channel, mask=channel < CHANNELS)
        channel_bias = tl.load(bias + channel, mask=channel < CHANNELS)
    best = tl.full((BLOCK_COLUMNS, BLOCK_CHANNELS), float("-inf"), tl.float32)
    best_pixel = tl.zeros((BLOCK_COLUMNS, BLOCK_CHANNELS), tl.float32)
    # A window of nothing but -inf takes its first pixel inside the image.
    winner = tl.where(i == 0, 3, 0) + tl.where(j == 0, 1, 0) + tl.zeros((BLOCK_COLUMNS, BLOCK_CHANNELS), tl.int32)
    for number in tl.static_range(9):
        row = 2 * i - 1 + number // 3
        column = 2 * j - 1 + number % 3
        valid = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        offset = (row * WIDTH + column) * CHANNELS + channel
        pixel = tl.load(image + offset, mask=valid, other=float("-inf")).to(tl.float32)
        value = pixel
        if NORM:
            normal = (pixel - channel_mean) * channel_scale + channel_bias
            # Rounded as a stored activation is, so that equal values are equal here too.
            normal = normal.to(pooled.dtype.element_ty).to(tl.float32)
            value = tl.where(valid, tl.where(normal < 0, 0.0, normal), float("-inf"))
        # The first of equal values; a NaN takes over and is left to a later NaN only: PyTorch's order.
        taken = (value > best) | (value != value)
        best = tl.where(taken, value, best)
        winner = tl.where(taken, number, winner)
        if NORM:
            best_pixel = tl.where(taken, pixel, best_pixel)
    # 64-bit numbers for the row, 32-bit ones inside of it.
    start = window_row * (WINDOW_COLUMNS * CHANNELS)
    offset = j * CHANNELS + channel
    tl.store(pooled + start + offset, best, mask=inside)
    tl.store(winners + start + offset, winner, mask=inside)
    if NORM:
        tl.store(picked + start + offset, best_pixel, mask=inside)


@triton.jit
def pool_backward(
    grad_pooled,
    winners,
    images,
    mean,
    scale,
    slope,
    shift,
    grad_images,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Gradient of the pixels (2i, 2i+1) x (2j, 2j+1); with NORM ``scale * grad + slope * (image - mean) + shift``."""
    WINDOW_ROWS: tl.constexpr = (HEIGHT + 1) // 2
    WINDOW_COLUMNS: tl.constexpr = (WIDTH + 1) // 2
    window_row = tl.program_id(0).to(tl.int64)
    i = (window_row % WINDOW_ROWS).to(tl.int32)
    j = (tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS))[:, None]
    channel = (tl.program_id(2) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS))[None, :]
    here = (j < WINDOW_COLUMNS) & (channel < CHANNELS)
    right = (j + 1 < WINDOW_COLUMNS) & (channel < CHANNELS)
    below = i + 1 < WINDOW_ROWS
    down: tl.constexpr = WINDOW_COLUMNS * CHANNELS
    # 64-bit numbers for the row, 32-bit ones inside of it.
    grads = grad_pooled + window_row * down
    pixels = winners + window_row * down
    window = j * CHANNELS + channel
    # A window outside of the image has the gradient zero, whatever its pixel.
    grad = tl.load(grads + window, mask=here, other=0.0).to(tl.float32)
    grad_right = tl.load(grads + (window + CHANNELS), mask=right, other=0.0).to(tl.float32)
    grad_below = tl.load(grads + (window + down), mask=here & below, other=0.0).to(tl.float32)
    grad_across = tl.load(grads + (window + down + CHANNELS), mask=right & below, other=0.0).to(tl.float32)
    winner = tl.load(pixels + window, mask=here, other=0)
    winner_right = tl.load(pixels + (window + CHANNELS), mask=right, other=0)
    winner_below = tl.load(pixels + (window + down), mask=here & below, other=0)
    winner_across = tl.load(pixels + (window + down + CHANNELS), mask=right & below, other=0)
    # Even rows lie in one window's middle row, odd ones in the last row of a window and the first of the next.
    even_even = tl.where(winner == 4, grad, 0.0)
    even_odd = tl.where(winner == 5, grad, 0.0) + tl.where(winner_right == 3, grad_right, 0.0)
    odd_even = tl.where(winner == 7, grad, 0.0) + tl.where(winner_below == 1, grad_below, 0.0)
    odd_odd = tl.where(winner == 8, grad, 0.0) + tl.where(winner_right == 6, grad_right, 0.0)
    odd_odd += tl.where(winner_below == 2, grad_below, 0.0) + tl.where(winner_across == 0, grad_across, 0.0)
    image = window_row // WINDOW_ROWS * (HEIGHT * WIDTH * CHANNELS)
    grads = grad_images + image
    place = (2 * i * WIDTH + 2 * j) * CHANNELS + channel
    columns = here & (2 * j + 1 < WIDTH)
    rows = 2 * i + 1 < HEIGHT
    known = channel < CHANNELS
    if NORM:
        images += image
        mean = tl.load(mean + channel, mask=known)
        scale = tl.load(scale + channel, mask=known)
        slope = tl.load(slope + channel, mask=known)
        shift = tl.load(shift + channel, mask=known)
    _store(grads, images, place, even_even, here, mean, scale, slope, shift, NORM)
    _store(grads, images, place + CHANNELS, even_odd, columns, mean, scale, slope, shift, NORM)
    place += WIDTH * CHANNELS
    _store(grads, images, place, odd_even, here & rows, mean, scale, slope, shift, NORM)
    _store(grads, images, place + CHANNELS, odd_odd, columns & rows, mean, scale, slope, shift, NORM)


@triton.jit
def _store(grads, images, place, grad, mask, mean, scale, slope, shift, NORM: tl.constexpr):
    if NORM:
        centred = tl.load(images + place, mask=mask, other=0.0).to(tl.float32) - mean
        grad = scale * grad + slope * centred + shift
    tl.store(grads + place, grad, mask=mask)
