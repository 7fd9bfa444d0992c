"""What ranks tell each other beside gradients: that they are in one run, who says yes, whose numbers count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fasttrain.errors import Problem, TrainingError


def check_equal(values: Mapping[str, int], world_size: int, device: torch.device) -> None:
    """See that all ranks have the same numbers: ranks that stand at different steps would wait for ever.

    Args:
        values: By what they are.
        world_size: Ranks; all must ask.
        device: Of the backend's tensors.

    Raises:
        TrainingError: They do not.
    """
    if world_size == 1:
        return
    mine = torch.tensor(list(values.values()), device=device)
    low, high = mine.clone(), mine.clone()
    torch.distributed.all_reduce(low, op=torch.distributed.ReduceOp.MIN)
    torch.distributed.all_reduce(high, op=torch.distributed.ReduceOp.MAX)
    differ = [f"{name}: {a} to {b}" for name, a, b in zip(values, low.tolist(), high.tolist(), strict=True) if a != b]
    if differ:
        raise TrainingError(
            Problem(
                "the ranks are not in the same run: they differ in " + ", ".join(differ),
                "start every rank with the same command, over the same data and run_dir",
            )
        )


def any_rank(answer: bool, world_size: int, device: torch.device) -> bool:
    """Whether any rank says yes; all must ask."""
    return smallest([1 - int(answer)], world_size, device) == [0]


def smallest(numbers: list[int], world_size: int, device: torch.device) -> list[int]:
    """Of each number the smallest of all ranks; all must ask."""
    if world_size == 1:
        return numbers
    values = torch.tensor(numbers, device=device)
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MIN)
    return [int(value) for value in values.tolist()]


def of_all_ranks(values: Tensor, world_size: int, device: torch.device) -> list[Tensor]:
    """Every rank's tensor, on the CPU in the ranks' order; all must ask, with equal shapes and dtypes."""
    if world_size == 1:
        return [values.cpu()]
    mine = values.to(device)
    gathered = [torch.empty_like(mine) for _ in range(world_size)]
    torch.distributed.all_gather(gathered, mine)
    return [tensor.cpu() for tensor in gathered]


def take_from_first(tensors: Iterable[Tensor], world_size: int) -> None:
    """Copy rank 0's values into every rank's tensors."""
    if world_size > 1:
        for tensor in tensors:
            torch.distributed.broadcast(tensor, src=0)
