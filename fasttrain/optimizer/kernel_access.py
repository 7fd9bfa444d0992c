# mypy: disallow-untyped-defs=False
"""What the kernels share: the tables' columns, and how a block reads and writes its part of a tensor."""

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
def place(addresses, tensor, slot: tl.constexpr, ALIGNED: tl.constexpr, HALF: tl.constexpr = False):
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
def read(place, offsets, size, full):
    # Only accesses without a mask are wide.
    if full:
        values = tl.load(place + offsets)
    else:
        values = tl.load(place + offsets, mask=offsets < size, other=0.0)
    return values


@triton.jit
def write(place, offsets, values, size, full):
    if full:
        tl.store(place + offsets, values)
    else:
        tl.store(place + offsets, values, mask=offsets < size)


@triton.jit
def gradient(place, offsets, size, full, inverse_scale, SCALED: tl.constexpr):
    grad = read(place, offsets, size, full)
    if SCALED:
        grad = (grad.to(tl.float64) * inverse_scale).to(tl.float32)
    return grad


@triton.jit
def sum_of_partials(partials, first, last, stride: tl.constexpr, slot: tl.constexpr, CHUNK: tl.constexpr):
    total = tl.zeros((CHUNK,), tl.float64)
    for start in range(first, last, CHUNK):
        blocks = start + tl.arange(0, CHUNK)
        total += tl.load(partials + blocks * stride + slot, mask=blocks < last, other=0.0)
    return tl.sum(total, axis=0)
