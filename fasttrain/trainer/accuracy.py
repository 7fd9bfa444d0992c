"""Accuracies of a validation: of each network, with and without test-time augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fasttrain.trainer.meters import AccuracyMeter
from fasttrain.trainer.views import predict


@dataclass(frozen=True)
class Counts:
    """Correct top-1 and top-5 answers, and images."""

    correct1: int
    correct5: int
    num_val: int

    @property
    def top1(self) -> float:
        """Percent."""
        return 100 * self.correct1 / self.num_val

    @property
    def top5(self) -> float:
        """Percent."""
        return 100 * self.correct5 / self.num_val


@dataclass(frozen=True)
class Accuracies:
    """What a validation counted over all ranks.

    Attributes:
        counting: Of the network whose accuracy counts, with test-time augmentation where the run has one.
        plain: Of that network without it.
        raw: Of the network that is trained, with it; the same as ``counting`` unless an average counts.
    """

    counting: Counts
    plain: Counts
    raw: Counts


class Validation:
    """Counts one validation on one rank.

    Args:
        networks: Validated side by side; the last one's accuracy counts, the first one is the one that is trained.
        test_time_augmentation: See ``views``.
        device: Of the networks.
    """

    def __init__(self, networks: Sequence[nn.Module], test_time_augmentation: str, device: torch.device) -> None:
        self._networks, self._kind = networks, test_time_augmentation
        self._meters = [(AccuracyMeter(device), AccuracyMeter(device)) for _ in networks]

    def add(self, images_nchw: Tensor, labels: Tensor, num_valid: int) -> None:
        """Count the first ``num_valid`` normalised images of a batch."""
        for network, (counting, plain) in zip(self._networks, self._meters, strict=True):
            # The network alone is not compiled: validation shapes are not worth a compilation each.
            logits = predict(network, images_nchw, self._kind)
            counting.add(logits.counting, labels, num_valid)
            plain.add(logits.plain, labels, num_valid)

    def counts(self) -> Tensor:
        """Counts of this rank, to be summed over the ranks: int64 [networks, with and without views, 3]."""
        return torch.stack([torch.stack([meter.counts for meter in pair]) for pair in self._meters])


def accuracies(counts: Tensor) -> Accuracies:
    """What the sum of all ranks' ``Validation.counts`` says."""
    networks = counts.tolist()
    counting, plain = networks[-1]
    return Accuracies(Counts(*counting), Counts(*plain), Counts(*networks[0][0]))
