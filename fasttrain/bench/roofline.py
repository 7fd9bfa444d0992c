"""The least time that a chip needs for a training step: counted operations and bytes against measured ceilings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fasttrain.data.batch import COMPUTE_DTYPES

# Passes over the weights of an SGD update with momentum, fp32: weight, gradient, momentum read; weight, momentum
# written.
UPDATE_PASSES = 5

COUNTING = (
    "roofline: for each convolution and matrix product of forward and backward the longer of its operations "
    "(torch.utils.flop_counter) at the chip's rate and its inputs and outputs, once each, at the memory's; the "
    "update's traffic is that of SGD with momentum; everything else counts as fused away, so 1.0 cannot be reached"
)


@dataclass(frozen=True)
class Chip:
    """What a device can do at most.

    Attributes:
        flops_per_s: By precision; one that is missing has not been measured.
        bytes_per_s: Of its memory.
        source: Of both.
    """

    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str


CHIPS = {
    "NVIDIA H200": Chip(
        # The data sheet gives bf16 and fp16 one rate on tensor cores.
        flops_per_s={"bf16": 790e12, "fp16": 790e12},
        bytes_per_s=4.3e12,
        source="ceilings measured on one H200: 790 TFLOP/s in bf16 matrix products (fp16 taken as equal), 4.3 TB/s",
    )
}


@dataclass(frozen=True)
class Work:
    """What one step asks of one device.

    Attributes:
        operations: (FLOPs, bytes) of each convolution and matrix product, forward and backward.
        update_bytes: Of the optimizer.
    """

    operations: tuple[tuple[int, int], ...]
    update_bytes: int

    @property
    def flops(self) -> int:
        return sum(flops for flops, _ in self.operations)


class _Count(TorchDispatchMode):
    """Notes FLOPs and bytes of every operation whose FLOPs torch can count."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
            moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.operations.append((int(formula(*args, **(kwargs or {}), out_val=out)), moved))
        return out


def count_work(network: nn.Module, *, px: int, micro_batch: int, accumulate: int, precision: str) -> Work:
    """Go through a step on the meta device: nothing is computed.

    Args:
        network: Stays as it is.
        px: Side of the images.
        micro_batch: Images at once on this device.
        accumulate: Micro-batches of a step.
        precision: As in ``trainer.precision``; activations count with its bytes.
    """
    dtype = COMPUTE_DTYPES[precision]
    copied = copy.deepcopy(network).to(device="meta", dtype=dtype).train()
    images = torch.empty((micro_batch, 3, px, px), dtype=dtype, device="meta")
    with _Count() as count:
        logits = copied(images)
        labels = torch.empty((micro_batch,), dtype=torch.int64, device="meta")
        F.cross_entropy(logits.float(), labels).backward()
    weights = sum(parameter.numel() for parameter in network.parameters())
    return Work(tuple(count.operations) * accumulate, UPDATE_PASSES * 4 * weights)


def least_seconds(work: Work, chip: Chip, precision: str) -> float | None:
    """The step's time if every operation ran at one of the chip's two ceilings.

    Returns:
        Seconds; None where the chip's rate in this precision has not been measured.
    """
    flops_per_s = chip.flops_per_s.get(precision)
    if flops_per_s is None:
        return None
    products = sum(max(flops / flops_per_s, moved / chip.bytes_per_s) for flops, moved in work.operations)
    return products + work.update_bytes / chip.bytes_per_s
