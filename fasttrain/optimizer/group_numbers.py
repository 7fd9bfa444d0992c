"""The hyper-parameters of all groups as one table on the device, from which the kernels read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# In the order in which kernel_access.py numbers them; a group that lacks one has 0.
COLUMNS = (
    "lr",
    "momentum",
    "weight_decay",
    "nesterov",
    "sgd_share",
    "rms_weight",
    "rms_lr",
    "rms_decay",
    "rms_eps",
    "eta",
    "min_trust_ratio",
    "max_trust_ratio",
    "trust",
)


class GroupNumbers:
    """Owns the table ``[groups, columns]`` in fp64, in which the kernels compute.

    A number of a group that is held on the device *is* its cell: filling it moves what a captured launch reads. A
    float is written into its cell when it has changed since.
    """

    def __init__(self, num_groups: int, device: torch.device) -> None:
        self.table = torch.zeros(num_groups, len(COLUMNS), dtype=torch.float64, device=device)
        self._cells = [dict(zip(COLUMNS, row.unbind(), strict=True)) for row in self.table.unbind()]
        self._written: list[dict[str, float]] = [dict.fromkeys(COLUMNS, 0.0) for _ in range(num_groups)]

    def hold(self, groups: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
        """Make the cells of these numbers the groups' own."""
        for group, cells, written in zip(groups, self._cells, self._written, strict=True):
            for key in keys:
                if group[key] is not cells[key]:
                    _set(cells[key], group[key])
                    written.pop(key, None)
                    group[key] = cells[key]

    def write(self, groups: list[dict[str, Any]]) -> None:
        """Bring the table up to the groups' values; no host sync."""
        for group, cells, written in zip(groups, self._cells, self._written, strict=True):
            for key, cell in cells.items():
                value = group.get(key, 0.0)
                if value is cell:
                    continue
                if isinstance(value, Tensor):
                    cell.copy_(value)
                    written.pop(key, None)
                elif written.get(key) != value:
                    cell.fill_(value)
                    written[key] = value


def _set(cell: Tensor, value: Any) -> None:
    if isinstance(value, Tensor):
        cell.copy_(value)
    else:
        cell.fill_(value)
