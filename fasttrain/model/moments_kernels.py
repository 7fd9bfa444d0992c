# mypy: disallow-untyped-defs=False
"""Triton kernel of the sums from which mean and variance of each channel are made, over channels_last memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def channel_sums(
    images,
    sums,
    num_pixels,
    CHANNELS: tl.constexpr,
    CHUNK_PIXELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Sums of each pixel less the first one, and of the square, over ``CHUNK_PIXELS`` pixels, for each channel.

    Args:
        images: [num_pixels, CHANNELS].
        sums: fp32 [chunks, 2, CHANNELS], written.
    """
    chunk = tl.program_id(0)
    channel = (tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS))[None, :]
    known = channel < CHANNELS
    shift = tl.load(images + channel, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)
    squares = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)
    first = chunk.to(tl.int64) * CHUNK_PIXELS
    place = images + first * CHANNELS
    left = tl.minimum(num_pixels - first, CHUNK_PIXELS).to(tl.int32)
    for start in range(0, CHUNK_PIXELS, BLOCK_PIXELS):
        pixel = (start + tl.arange(0, BLOCK_PIXELS))[:, None]
        mask = (pixel < left) & known
        value = tl.load(place + pixel * CHANNELS + channel, mask=mask, other=0.0).to(tl.float32)
        distance = tl.where(mask, value - shift, 0.0)
        total += distance
        squares += distance * distance
    out = sums + chunk.to(tl.int64) * 2 * CHANNELS + channel
    tl.store(out, tl.sum(total, 0, keep_dims=True), mask=known)
    tl.store(out + CHANNELS, tl.sum(squares, 0, keep_dims=True), mask=known)
