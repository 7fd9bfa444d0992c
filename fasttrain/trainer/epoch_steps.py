"""The steps of one epoch as Lightning's loader, and the random numbers that belong to it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fasttrain.data.batch import Batch
from fasttrain.data.path import DataPath
from fasttrain.stages import EpochPlan


class EpochSteps:
    """The optimizer steps of an epoch, from the one at which the run stands.

    Args:
        data: Gives the batches.
        epoch: The epoch.
        first: Steps of it that are done already; above zero only after a resume in its middle.
    """

    def __init__(self, data: DataPath, epoch: EpochPlan, *, first: int) -> None:
        self._data = data
        self._epoch = epoch
        self._first = first

    def __len__(self) -> int:
        return self._epoch.steps - self._first

    def __iter__(self) -> Iterator[list[Batch]]:
        # A generator: nothing is read before Lightning asks for the first batch, after the clock has started.
        yield from self._data.train_epoch(self._epoch, first_step_in_epoch=self._first)


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """Make the random numbers of an epoch (dropout, stochastic depth) a function of (seed, epoch, rank)."""
    torch.manual_seed(((seed * 1_000_003 + epoch) * 65_537 + rank) % 2**63)
