"""The steps of one epoch as Lightning's loader, and the random numbers that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch

from fasttrain.data.batch import Batch
from fasttrain.data.path import DataPath
from fasttrain.stages import EpochPlan


class Steps:
    """Optimizer steps that Lightning takes as one batch.

    Args:
        steps: Where they come from; read as they are trained, so that decoding stays ahead.
        count: How many of them.
    """

    def __init__(self, steps: Iterator[list[Batch]], count: int) -> None:
        self._steps, self._count = steps, count

    def __call__(self, train_step: Callable[[list[Batch]], None]) -> None:
        """Train them."""
        for micro_batches in islice(self._steps, self._count):
            train_step(micro_batches)


class EpochSteps:
    """The optimizer steps of an epoch, from the one at which the run stands, several to a Lightning batch.

    Args:
        data: Gives the batches.
        epoch: The epoch.
        first: Steps of it that are done already; above zero only after a resume in its middle.
        together: Most steps in one Lightning batch.
    """

    def __init__(self, data: DataPath, epoch: EpochPlan, *, first: int, together: int) -> None:
        self._data = data
        self._epoch = epoch
        self._first = first
        self._together = together

    def __len__(self) -> int:
        return -(-(self._epoch.steps - self._first) // self._together)

    def __iter__(self) -> Iterator[Steps]:
        # A generator: nothing is read before Lightning asks for the first batch, after the clock has started.
        steps = self._data.train_epoch(self._epoch, first_step_in_epoch=self._first)
        for done in range(self._first, self._epoch.steps, self._together):
            yield Steps(steps, min(self._together, self._epoch.steps - done))


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """Make the random numbers of an epoch (dropout, stochastic depth) a function of (seed, epoch, rank)."""
    torch.manual_seed(((seed * 1_000_003 + epoch) * 65_537 + rank) % 2**63)


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Make them, from the middle of an epoch on, a function of (seed, epoch, step, rank)."""
    torch.manual_seed((((seed * 1_000_003 + epoch) * 65_537 + rank) * 16_777_259 + step) % 2**63)
