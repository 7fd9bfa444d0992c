# mypy: disallow-untyped-defs=False
"""Kernels of SGD with momentum, of the hybrid's adaptive part, and of steps with a ratio for each tensor."""

from __future__ import annotations

import triton
import triton.language as tl

from fasttrain.optimizer.kernel_access import (
    COLUMNS,
    GRAD,
    LR,
    MOMENTUM,
    MOMENTUM_BUFFER,
    NESTEROV,
    RMS_DECAY,
    RMS_EPS,
    RMS_LR,
    RMS_WEIGHT,
    SGD_SHARE,
    SQUARE_AVERAGE,
    WEIGHT,
    WEIGHT_DECAY,
    gradient,
    place,
    read,
    write,
)


@triton.jit
def sgd(
    addresses,
    sizes,
    groups,
    block_tensors,
    block_numbers,
    numbers,
    ratios,
    grad_scale,
    found_inf,
    HYBRID: tl.constexpr,
    RATIOS: tl.constexpr,
    SCALED: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """SGD with momentum on each block; with the hybrid's adaptive part, or each tensor's trust ratio."""
    block = tl.program_id(0)
    if RATIOS:
        # The norms were read in order: the last tensors are still in the cache.
        block = tl.num_programs(0) - 1 - block
    inverse_scale = 1.0
    if SCALED:
        if tl.load(found_inf) != 0:
            return
        inverse_scale = 1.0 / tl.load(grad_scale).to(tl.float64)
    tensor = tl.load(block_tensors + block)
    size = tl.load(sizes + tensor)
    start = tl.load(block_numbers + block).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    row = numbers + tl.load(groups + tensor) * COLUMNS
    ratio = 1.0
    if RATIOS:
        ratio = tl.load(ratios + tensor)
    full = start + BLOCK <= size
    weight_at = place(addresses, tensor, WEIGHT, ALIGNED)
    buffer_at = place(addresses, tensor, MOMENTUM_BUFFER, ALIGNED)
    grad = gradient(place(addresses, tensor, GRAD, ALIGNED), offsets, size, full, inverse_scale, SCALED)
    weight = read(weight_at, offsets, size, full).to(tl.float64)
    buffer = read(buffer_at, offsets, size, full).to(tl.float64)
    lr = tl.load(row + LR)
    momentum = tl.load(row + MOMENTUM)
    decay = tl.load(row + WEIGHT_DECAY)
    direction = tl.where(decay != 0, (grad.to(tl.float64) + decay * weight).to(tl.float32), grad)
    if RATIOS:
        direction = (ratio * direction.to(tl.float64)).to(tl.float32)
    if HYBRID:
        share = tl.load(row + SGD_SHARE)
        rms_lr = tl.load(row + RMS_LR)
        if (share < 1) & (rms_lr != 0):
            squares_at = place(addresses, tensor, SQUARE_AVERAGE, ALIGNED)
            beta = tl.load(row + RMS_DECAY)
            unit = 1 - beta
            squares = read(squares_at, offsets, size, full).to(tl.float64)
            square = grad.to(tl.float64) * grad.to(tl.float64)
            averaged = (beta * squares + unit * square).to(tl.float32)
            write(squares_at, offsets, averaged, size, full)
            # Roots and quotients of single numbers in fp64, those of the tensors, which would be slow, in fp32.
            weight_root = tl.sqrt(beta * tl.load(row + RMS_WEIGHT) + unit)
            floor = (tl.load(row + RMS_EPS) * weight_root).to(tl.float32)
            adaptive = tl.div_rn(grad, tl.sqrt_rn(averaged) + floor)
            scale = tl.where(lr > 0, (1 - share) * rms_lr * weight_root / tl.where(lr > 0, lr, 1.0), 0.0)
            mixed = share * direction.to(tl.float64) + scale * adaptive.to(tl.float64)
            direction = mixed.to(tl.float32)
    step = direction.to(tl.float64)
    buffer = momentum * buffer + step
    ahead = (step + momentum * buffer).to(tl.float32)
    behind = buffer.to(tl.float32)
    step = tl.where(tl.load(row + NESTEROV) != 0, ahead, behind).to(tl.float64)
    write(buffer_at, offsets, behind, size, full)
    write(weight_at, offsets, (weight - lr * step).to(tl.float32), size, full)


@triton.jit
def advance_rms_weight(numbers, found_inf, SCALED: tl.constexpr):
    """One program a group, after its tensors: the hybrid's ``q = beta q + (1 - beta)``."""
    row = numbers + tl.program_id(0) * COLUMNS
    if SCALED:  # noqa: SIM102 - `and` would load found_inf always
        if tl.load(found_inf) != 0:
            return
    beta = tl.load(row + RMS_DECAY)
    before = tl.load(row + RMS_WEIGHT)
    moves = (tl.load(row + SGD_SHARE) < 1) & (tl.load(row + RMS_LR) != 0)
    tl.store(row + RMS_WEIGHT, tl.where(moves, beta * before + (1 - beta), before))
