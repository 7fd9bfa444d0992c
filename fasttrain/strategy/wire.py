"""The form of gradients on the wire."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype | None] = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def wire_dtype(name: str, own: torch.dtype) -> torch.dtype:
    """Type on the wire of gradients of type ``own``; never a wider one."""
    dtype = DTYPES[name]
    return own if dtype is None or dtype.itemsize >= own.itemsize else dtype


def pack(buffers: Sequence[Tensor], dtype: torch.dtype, multiple: int) -> Tensor:
    """One flat tensor of all buffers, with zeros at its end up to a multiple of ``multiple`` elements.

    Args:
        buffers: 1-D, of one type.
        dtype: Of the result.
        multiple: At least 1.
    """
    length = sum(buffer.numel() for buffer in buffers)
    padded = -(-length // multiple) * multiple
    flat = torch.empty(padded, dtype=dtype, device=buffers[0].device)
    start = 0
    for buffer in buffers:
        flat[start : start + buffer.numel()].copy_(buffer)
        start += buffer.numel()
    flat[length:].zero_()
    return flat


def unpack(flat: Tensor, buffers: Sequence[Tensor]) -> None:
    """Copy a packed tensor's values back into the buffers."""
    start = 0
    for buffer in buffers:
        buffer.copy_(flat[start : start + buffer.numel()])
        start += buffer.numel()
