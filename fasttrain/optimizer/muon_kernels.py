# mypy: disallow-untyped-defs=False
"""Kernels around the orthogonalisation: momentum, stacks of directions of norm 1, the step."""

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
    STACK_IN,
    STACK_OUT,
    WEIGHT,
    WEIGHT_DECAY,
    gradient,
    place,
    read,
    sum_of_partials,
    write,
)


@triton.jit
def _look_ahead(grad, buffer, row):
    ahead = grad.to(tl.float64) + tl.load(row + MOMENTUM) * buffer.to(tl.float64)
    return tl.where(tl.load(row + NESTEROV) != 0, ahead.to(tl.float32), buffer)


@triton.jit
def muon_momentum(
    addresses,
    sizes,
    groups,
    block_tensors,
    block_numbers,
    numbers,
    partials,
    grad_scale,
    found_inf,
    SCALED: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Momentum of the matrices, and the sums of squares of each block's directions: ``partials`` is ``[blocks]``."""
    block = tl.program_id(0)
    inverse_scale = 1.0
    if SCALED:
        if tl.load(found_inf) != 0:
            return
        inverse_scale = 1.0 / tl.load(grad_scale).to(tl.float64)
    tensor = tl.load(block_tensors + block)
    size = tl.load(sizes + tensor)
    start = tl.load(block_numbers + block).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    full = start + BLOCK <= size
    row = numbers + tl.load(groups + tensor) * COLUMNS
    buffer_at = place(addresses, tensor, MOMENTUM_BUFFER, ALIGNED)
    grad = gradient(place(addresses, tensor, GRAD, ALIGNED), offsets, size, full, inverse_scale, SCALED)
    buffer = read(buffer_at, offsets, size, full).to(tl.float64)
    buffer = (tl.load(row + MOMENTUM) * buffer + grad.to(tl.float64)).to(tl.float32)
    write(buffer_at, offsets, buffer, size, full)
    direction = _look_ahead(grad, buffer, row).to(tl.float64)
    tl.store(partials + block, tl.sum(direction * direction, axis=0))


@triton.jit
def muon_inverse_norms(first_blocks, partials, inverse_norms, EPS: tl.constexpr, CHUNK: tl.constexpr):
    """One program a matrix: one over the norm of its direction."""
    tensor = tl.program_id(0)
    first = tl.load(first_blocks + tensor)
    last = tl.load(first_blocks + tensor + 1)
    norm = tl.sqrt(sum_of_partials(partials, first, last, 1, 0, CHUNK))
    tl.store(inverse_norms + tensor, 1.0 / (norm + EPS))


@triton.jit
def muon_stack(
    addresses,
    sizes,
    groups,
    block_tensors,
    block_numbers,
    numbers,
    inverse_norms,
    grad_scale,
    HALF: tl.constexpr,
    SCALED: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Directions of norm 1 into the stacks of equal shapes, in bf16 (``HALF``) or fp32."""
    block = tl.program_id(0)
    inverse_scale = 1.0
    if SCALED:
        inverse_scale = 1.0 / tl.load(grad_scale).to(tl.float64)
    tensor = tl.load(block_tensors + block)
    size = tl.load(sizes + tensor)
    start = tl.load(block_numbers + block).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    full = start + BLOCK <= size
    row = numbers + tl.load(groups + tensor) * COLUMNS
    grad = gradient(place(addresses, tensor, GRAD, ALIGNED), offsets, size, full, inverse_scale, SCALED)
    buffer = read(place(addresses, tensor, MOMENTUM_BUFFER, ALIGNED), offsets, size, full)
    direction = _look_ahead(grad, buffer, row).to(tl.float64) * tl.load(inverse_norms + tensor)
    stack_at = place(addresses, tensor, STACK_IN, ALIGNED, HALF)
    if HALF:
        write(stack_at, offsets, direction.to(tl.float32).to(tl.bfloat16), size, full)
    else:
        write(stack_at, offsets, direction.to(tl.float32), size, full)


@triton.jit
def muon_apply(
    addresses,
    sizes,
    groups,
    block_tensors,
    block_numbers,
    numbers,
    shape_scales,
    found_inf,
    HALF: tl.constexpr,
    SCALED: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Decoupled decay, then the step along the orthogonal matrix times its shape's scale."""
    block = tl.program_id(0)
    if SCALED:  # noqa: SIM102 - `and` would load found_inf always
        if tl.load(found_inf) != 0:
            return
    tensor = tl.load(block_tensors + block)
    size = tl.load(sizes + tensor)
    start = tl.load(block_numbers + block).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    full = start + BLOCK <= size
    row = numbers + tl.load(groups + tensor) * COLUMNS
    lr = tl.load(row + LR)
    weight_at = place(addresses, tensor, WEIGHT, ALIGNED)
    weight = read(weight_at, offsets, size, full).to(tl.float64)
    orthogonal = read(place(addresses, tensor, STACK_OUT, ALIGNED, HALF), offsets, size, full).to(tl.float64)
    weight = (1 - lr * tl.load(row + WEIGHT_DECAY)) * weight - lr * tl.load(shape_scales + tensor) * orthogonal
    write(weight_at, offsets, weight.to(tl.float32), size, full)
