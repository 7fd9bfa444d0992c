# mypy: disallow-untyped-defs=False
"""Triton kernels that update all tensors of all groups in one launch.

A launch walks blocks of ``BLOCK`` elements. Tables on the device say which block belongs to which tensor, where the
tensors lie and which group they are of; ``tensor_table.py`` builds them. Hyper-parameters are read from a table of a
row a group (``group_numbers.py``), so that a captured launch follows them. With ``SCALED`` gradients are divided by
fp16's loss scale, and nothing at all is changed where an infinity was found.

Arithmetic is in fp64 with the roundings of ``torch.optim.SGD(fused=True)``, which it equals but for a rounding in
billions: fp64 products of an fp32 update are hidden behind the memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Slots of a tensor's row of addresses.
SLOTS = tl.constexpr(5)
WEIGHT = tl.constexpr(0)
GRAD = tl.constexpr(1)
MOMENTUM_BUFFER = tl.constexpr(2)
SQUARE_AVERAGE = tl.constexpr(3)
STACK_IN = tl.constexpr(3)
STACK_OUT = tl.constexpr(4)

# Columns of a group's row, in the order of group_numbers.COLUMNS.
COLUMNS = tl.constexpr(13)
LR = tl.constexpr(0)
MOMENTUM = tl.constexpr(1)
WEIGHT_DECAY = tl.constexpr(2)
NESTEROV = tl.constexpr(3)
SGD_SHARE = tl.constexpr(4)
RMS_WEIGHT = tl.constexpr(5)
RMS_LR = tl.constexpr(6)
RMS_DECAY = tl.constexpr(7)
RMS_EPS = tl.constexpr(8)
ETA = tl.constexpr(9)
MIN_TRUST_RATIO = tl.constexpr(10)
MAX_TRUST_RATIO = tl.constexpr(11)
TRUST = tl.constexpr(12)


@triton.jit
def _place(addresses, tensor, slot: tl.constexpr, ALIGNED: tl.constexpr, HALF: tl.constexpr = False):
    """Pointer to a tensor; with the promise that it stands at a multiple of 16 bytes the accesses are wide."""
    address = tl.load(addresses + tensor * SLOTS + slot)
    if HALF:
        place = address.to(tl.pointer_type(tl.bfloat16))
    else:
        place = address.to(tl.pointer_type(tl.float32))
    if ALIGNED:
        place = tl.multiple_of(place, 16)
    return place


@triton.jit
def _read(place, offsets, size, full):
    # Only accesses without a mask are wide.
    if full:
        values = tl.load(place + offsets)
    else:
        values = tl.load(place + offsets, mask=offsets < size, other=0.0)
    return values


@triton.jit
def _write(place, offsets, values, size, full):
    if full:
        tl.store(place + offsets, values)
    else:
        tl.store(place + offsets, values, mask=offsets < size)


@triton.jit
def _gradient(place, offsets, size, full, inverse_scale, SCALED: tl.constexpr):
    grad = _read(place, offsets, size, full)
    if SCALED:
        grad = (grad.to(tl.float64) * inverse_scale).to(tl.float32)
    return grad


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
    weight_at = _place(addresses, tensor, WEIGHT, ALIGNED)
    buffer_at = _place(addresses, tensor, MOMENTUM_BUFFER, ALIGNED)
    grad = _gradient(_place(addresses, tensor, GRAD, ALIGNED), offsets, size, full, inverse_scale, SCALED)
    weight = _read(weight_at, offsets, size, full).to(tl.float64)
    buffer = _read(buffer_at, offsets, size, full).to(tl.float64)
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
            squares_at = _place(addresses, tensor, SQUARE_AVERAGE, ALIGNED)
            beta = tl.load(row + RMS_DECAY)
            unit = 1 - beta
            squares = _read(squares_at, offsets, size, full).to(tl.float64)
            square = grad.to(tl.float64) * grad.to(tl.float64)
            averaged = (beta * squares + unit * square).to(tl.float32)
            _write(squares_at, offsets, averaged, size, full)
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
    _write(buffer_at, offsets, behind, size, full)
    _write(weight_at, offsets, (weight - lr * step).to(tl.float32), size, full)


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
    weight = _read(_place(addresses, tensor, WEIGHT, ALIGNED), offsets, size, full).to(tl.float64)
    grad = _read(_place(addresses, tensor, GRAD, ALIGNED), offsets, size, full).to(tl.float64)
    tl.store(partials + block * 2, tl.sum(weight * weight, axis=0))
    tl.store(partials + block * 2 + 1, tl.sum(grad * grad, axis=0))


@triton.jit
def _sum_of_partials(partials, first, last, stride: tl.constexpr, slot: tl.constexpr, CHUNK: tl.constexpr):
    total = tl.zeros((CHUNK,), tl.float64)
    for start in range(first, last, CHUNK):
        blocks = start + tl.arange(0, CHUNK)
        total += tl.load(partials + blocks * stride + slot, mask=blocks < last, other=0.0)
    return tl.sum(total, axis=0)


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
        weight_norm = tl.sqrt(_sum_of_partials(partials, first, last, 2, 0, CHUNK))
        grad_norm = tl.sqrt(_sum_of_partials(partials, first, last, 2, 1, CHUNK))
        if SCALED:
            grad_norm = grad_norm / tl.load(grad_scale).to(tl.float64)
        under = tl.maximum(grad_norm + tl.load(row + WEIGHT_DECAY) * weight_norm, TINY)
        ratio = tl.load(row + ETA) * weight_norm / under
        ratio = tl.minimum(tl.maximum(ratio, tl.load(row + MIN_TRUST_RATIO)), tl.load(row + MAX_TRUST_RATIO))
        tl.store(ratios + tensor, ratio)


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
    buffer_at = _place(addresses, tensor, MOMENTUM_BUFFER, ALIGNED)
    grad = _gradient(_place(addresses, tensor, GRAD, ALIGNED), offsets, size, full, inverse_scale, SCALED)
    buffer = _read(buffer_at, offsets, size, full).to(tl.float64)
    buffer = (tl.load(row + MOMENTUM) * buffer + grad.to(tl.float64)).to(tl.float32)
    _write(buffer_at, offsets, buffer, size, full)
    direction = _look_ahead(grad, buffer, row).to(tl.float64)
    tl.store(partials + block, tl.sum(direction * direction, axis=0))


@triton.jit
def muon_inverse_norms(first_blocks, partials, inverse_norms, EPS: tl.constexpr, CHUNK: tl.constexpr):
    """One program a matrix: one over the norm of its direction."""
    tensor = tl.program_id(0)
    first = tl.load(first_blocks + tensor)
    last = tl.load(first_blocks + tensor + 1)
    norm = tl.sqrt(_sum_of_partials(partials, first, last, 1, 0, CHUNK))
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
    grad = _gradient(_place(addresses, tensor, GRAD, ALIGNED), offsets, size, full, inverse_scale, SCALED)
    buffer = _read(_place(addresses, tensor, MOMENTUM_BUFFER, ALIGNED), offsets, size, full)
    direction = _look_ahead(grad, buffer, row).to(tl.float64) * tl.load(inverse_norms + tensor)
    stack_at = _place(addresses, tensor, STACK_IN, ALIGNED, HALF)
    if HALF:
        _write(stack_at, offsets, direction.to(tl.float32).to(tl.bfloat16), size, full)
    else:
        _write(stack_at, offsets, direction.to(tl.float32), size, full)


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
    weight_at = _place(addresses, tensor, WEIGHT, ALIGNED)
    weight = _read(weight_at, offsets, size, full).to(tl.float64)
    orthogonal = _read(_place(addresses, tensor, STACK_OUT, ALIGNED, HALF), offsets, size, full).to(tl.float64)
    weight = (1 - lr * tl.load(row + WEIGHT_DECAY)) * weight - lr * tl.load(shape_scales + tensor) * orthogonal
    _write(weight_at, offsets, weight.to(tl.float32), size, full)
