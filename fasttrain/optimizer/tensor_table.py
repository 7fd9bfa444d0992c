"""Where the tensors of one launch lie, and which block works on which part of them: tables on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Elements of a block: with eight warps two wide accesses of each thread to each tensor.
BLOCK = 2048

# As kernel_access.SLOTS: addresses of a tensor; 0 for those that a kernel does not ask for.
SLOTS = 5

# Rows of page-locked memory kept ready: one is used for good by each capture that meets new addresses.
SPARE_ROWS = 8


class TensorTable:
    """Owns the tables of a list of tensors of equal members: weights, gradients, buffers, ...

    Asked before each launch; builds the tables anew only where a tensor has moved. A table that a captured launch
    may read is neither changed nor freed afterwards.

    Attributes:
        addresses: ``[tensors, SLOTS]`` int64.
        sizes: ``[tensors]`` int64, elements.
        groups: ``[tensors]`` int32.
        block_tensors, block_numbers: ``[blocks]`` int32: the block's tensor, and its place in that tensor.
        first_blocks: ``[tensors + 1]`` int32.
        num_tensors, num_blocks: Their lengths.
        aligned: All addresses are multiples of 16 bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._key: tuple[int, ...] = ()
        self._members: tuple[int, ...] = ()
        self._kept: list[Tensor] = []
        self._spares: list[Tensor] = []
        self.num_tensors = self.num_blocks = 0
        self.aligned = False

    def refresh(
        self, slots: Sequence[Sequence[Tensor]], groups: Sequence[int], own: Sequence[Sequence[Tensor]] = ()
    ) -> bool:
        """Bring the tables up to these tensors.

        Args:
            slots: For each slot the tensors, in one order: fp32, of equal sizes and memory order. The first holds
                the weights.
            groups: Index of each tensor's group.
            own: Further slots: memory of any type that the optimizer made for each tensor.

        Returns:
            Whether the kernels can work on these tensors.

        Raises:
            RuntimeError: In a capture, parameters or gradients that no step before it has met.
        """
        key = tuple(tensor.data_ptr() for tensors in (*slots, *own) for tensor in tensors)
        if key != self._key:
            if not _fit(slots, self._device):
                self._key = ()
                return False
            members = tuple(id(tensor) for tensor in slots[0])
            if members != self._members:
                self._lay_out([tensor.numel() for tensor in slots[0]], groups)
                self._members = members
            self._set_addresses(key, len(slots) + len(own))
            self._key = key
        if _capturing(self._device) and not any(kept is self.addresses for kept in self._kept):
            self._kept += [self.addresses, self.sizes, self.groups, self.block_tensors, self.block_numbers]
            self._kept.append(self.first_blocks)
        return True

    def _lay_out(self, sizes: Sequence[int], groups: Sequence[int]) -> None:
        if _capturing(self._device):
            raise RuntimeError("parameters have gradients that had none before the capture; take one step before it")
        blocks = torch.tensor([-(-size // BLOCK) for size in sizes])
        self.num_tensors, self.num_blocks = len(sizes), int(blocks.sum())
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), blocks.cumsum(0)])
        tensors = torch.arange(len(sizes)).repeat_interleave(blocks)
        self.sizes = self._to_device(torch.tensor(list(sizes), dtype=torch.int64))
        self.groups = self._to_device(torch.tensor(list(groups), dtype=torch.int32))
        self.block_tensors = self._to_device(tensors.int())
        self.block_numbers = self._to_device((torch.arange(self.num_blocks) - ends[tensors]).int())
        self.first_blocks = self._to_device(ends.int())
        if self._device.type == "cuda":
            rows = torch.empty(SPARE_ROWS, len(sizes), SLOTS, dtype=torch.int64, pin_memory=True)
            self._spares = list(rows.unbind())

    def _set_addresses(self, key: tuple[int, ...], num_slots: int) -> None:
        table = torch.zeros(self.num_tensors, SLOTS, dtype=torch.int64)
        table[:, :num_slots] = torch.tensor(key, dtype=torch.int64).view(num_slots, -1).T
        self.aligned = all(address % 16 == 0 for address in key)
        if not _capturing(self._device):
            self.addresses = self._to_device(table)
            return
        if not self._spares:
            raise RuntimeError("gradients have moved in more captures than there is memory for; keep their addresses")
        # The copy is part of the capture: its source must stay as it is.
        source = self._spares.pop()
        source.copy_(table)
        self._kept.append(source)
        self.addresses = torch.empty_like(table, device=self._device)
        self.addresses.copy_(source, non_blocking=True)

    def _to_device(self, table: Tensor) -> Tensor:
        if self._device.type == "cuda":
            return table.pin_memory().to(self._device, non_blocking=True)
        return table


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Strides of the sides that are longer than 1: equal for tensors whose elements lie in one order."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill their memory, in the usual order or channels last."""
    return tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _fit(slots: Sequence[Sequence[Tensor]], device: torch.device) -> bool:
    return all(
        is_dense(members[0])
        and all(
            member.dtype == torch.float32
            and member.device == device
            and member.layout == torch.strided
            and member.shape == members[0].shape
            and memory_order(member) == memory_order(members[0])
            for member in members
        )
        for members in zip(*slots, strict=True)
    )


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
