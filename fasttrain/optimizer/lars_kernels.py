# mypy: disallow-untyped-defs=False
"""Kernels of the clamped trust ratios."""

from __future__ import annotations

import triton
import triton.language as tl

from fasttrain.optimizer.kernel_access import (
    COLUMNS,
    ETA,
    GRAD,
    MAX_TRUST_RATIO,
    MIN_TRUST_RATIO,
    TRUST,
    WEIGHT,
    WEIGHT_DECAY,
    place,
    read,
    sum_of_partials,
)


@triton.jit
def lars_squares(
    addresses,
    sizes,
    groups,
    block_tensors,
    block_numbers,
    numbers,
    partials,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums of squares of each block's weights and gradients: ``partials`` is ``[blocks, 2]``."""
    block = tl.program_id(0)
    tensor = tl.load(block_tensors + block)
    if tl.load(numbers + tl.load(groups + tensor) * COLUMNS + TRUST) == 0:
        return
    size = tl.load(sizes + tensor)
    start = tl.load(block_numbers + block).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    full = start + BLOCK <= size
    weight = read(place(addresses, tensor, WEIGHT, ALIGNED), offsets, size, full).to(tl.float64)
    grad = read(place(addresses, tensor, GRAD, ALIGNED), offsets, size, full).to(tl.float64)
    tl.store(partials + block * 2, tl.sum(weight * weight, axis=0))
    tl.store(partials + block * 2 + 1, tl.sum(grad * grad, axis=0))


@triton.jit
def lars_ratios(
    groups,
    first_blocks,
    numbers,
    partials,
    ratios,
    grad_scale,
    TINY: tl.constexpr,
    SCALED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program a tensor: its clamped trust ratio, 1 where its group has none."""
    tensor = tl.program_id(0)
    row = numbers + tl.load(groups + tensor) * COLUMNS
    if tl.load(row + TRUST) == 0:
        tl.store(ratios + tensor, tl.full((), 1.0, tl.float64))
    else:
        first = tl.load(first_blocks + tensor)
        last = tl.load(first_blocks + tensor + 1)
        weight_norm = tl.sqrt(sum_of_partials(partials, first, last, 2, 0, CHUNK))
        grad_norm = tl.sqrt(sum_of_partials(partials, first, last, 2, 1, CHUNK))
        if SCALED:
            grad_norm = grad_norm / tl.load(grad_scale).to(tl.float64)
        under = tl.maximum(grad_norm + tl.load(row + WEIGHT_DECAY) * weight_norm, TINY)
        ratio = tl.load(row + ETA) * weight_norm / under
        ratio = tl.minimum(tl.maximum(ratio, tl.load(row + MIN_TRUST_RATIO)), tl.load(row + MAX_TRUST_RATIO))
        tl.store(ratios + tensor, ratio)
