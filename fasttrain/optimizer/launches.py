"""Launches of the kernels over all tensors of an optimizer."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fasttrain.optimizer.group_numbers import GroupNumbers
from fasttrain.optimizer.matrix_stacks import MatrixStacks
from fasttrain.optimizer.tensor_table import BLOCK, TensorTable

WARPS = 8

# Partial sums that one program adds up at once.
CHUNK = 256


@dataclass(frozen=True)
class Scaling:
    """What torch's ``GradScaler`` hands to an optimizer that unscales by itself, or nothing.

    Attributes:
        grad_scale: 0-dim, by which the gradients are too large; None where they are not.
        found_inf: 0-dim, not zero where the step must be left out; None without a scaler.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None


@functools.cache
def load_kernels(device_type: str) -> ModuleType | None:
    """The kernels, where Triton is installed and works on such a device: CUDA, or any in its interpreter."""
    if device_type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from fasttrain.optimizer import kernels
    except ImportError:
        return None
    return kernels


class Launches:
    """Owns an optimizer's hyper-parameter table, tensor tables and the kernels' own memory on its device."""

    def __init__(self, kernels: ModuleType, num_groups: int, device: torch.device) -> None:
        self.kernels: Any = kernels
        self.device = device
        self.numbers = GroupNumbers(num_groups, device)
        self._tables: dict[str, TensorTable] = {}
        self._scratch: dict[tuple[str, int], Tensor] = {}
        self._one = torch.ones((), device=device)

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Triton launches on the current device."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def table(
        self,
        name: str,
        slots: Sequence[Sequence[Tensor]],
        groups: Sequence[int],
        stacks: MatrixStacks | None = None,
    ) -> TensorTable | None:
        """The tables of these tensors, see ``TensorTable.refresh``; None where the kernels cannot take them."""
        table = self._tables.setdefault(name, TensorTable(self.device))
        own = () if stacks is None else (stacks.inputs, stacks.outputs)
        return table if table.refresh(slots, groups, own) else None

    def scratch(self, name: str, size: int) -> Tensor:
        """fp64 memory of the kernels, zeros at first; never freed, since a capture may write to it."""
        if (name, size) not in self._scratch:
            self._scratch[(name, size)] = torch.zeros(size, dtype=torch.float64, device=self.device)
        return self._scratch[(name, size)]

    def scaling(self, scaling: Scaling) -> dict[str, Any]:
        """Arguments of a kernel that unscales and skips."""
        if scaling.found_inf is None:
            return {"grad_scale": self._one, "found_inf": self._one, "SCALED": False}
        return {"grad_scale": self.grad_scale(scaling), "found_inf": scaling.found_inf, "SCALED": True}

    def grad_scale(self, scaling: Scaling) -> Tensor:
        """What the gradients are to be divided by."""
        return self._one if scaling.grad_scale is None else scaling.grad_scale

    def over_blocks(self, kernel: Any, table: TensorTable, **arguments: Any) -> None:
        """Run a kernel over all blocks of a table's tensors."""
        kernel[(table.num_blocks,)](
            table.addresses,
            table.sizes,
            table.groups,
            table.block_tensors,
            table.block_numbers,
            self.numbers.table,
            **arguments,
            ALIGNED=table.aligned,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )

    def sgd(self, table: TensorTable, scaling: Scaling, *, hybrid: bool = False, ratios: Tensor | None = None) -> None:
        """Momentum and step; with the hybrid's adaptive part, or with a ratio for each tensor."""
        self.over_blocks(
            self.kernels.sgd,
            table,
            ratios=self._one if ratios is None else ratios,
            HYBRID=hybrid,
            RATIOS=ratios is not None,
            **self.scaling(scaling),
        )
