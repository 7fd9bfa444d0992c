"""BatchNorm whose statistics are those of small groups of images, whatever the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fasttrain.errors import ConfigError, Problem


class GhostBatchNorm2d(nn.BatchNorm2d):
    """In training each ``ghost_size`` consecutive images are normalised by their own statistics.

    The running statistics move once a batch, by the mean of the groups' means and variances, so that momentum
    means what it means without groups. Outside of training it is the plain layer.

    Source: arXiv:1705.08741, section 4.
    """

    ghost_size: int

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[n, c, h, w] to the same; in training n is a multiple of ``ghost_size``."""
        return normalize_in_groups(self, images, self.ghost_size) if self.training else super().forward(images)


class GhostBatchNormAct2d(BatchNormAct2d):
    """The same for timm's fused norm-and-activation layer."""

    ghost_size: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, c, h, w] to the same; in training n is a multiple of ``ghost_size``."""
        if not self.training:
            return super().forward(x)
        return self.act(self.drop(normalize_in_groups(self, x, self.ghost_size)))


GHOST_CLASSES: dict[type[_BatchNorm], type[_BatchNorm]] = {
    nn.BatchNorm2d: GhostBatchNorm2d,
    BatchNormAct2d: GhostBatchNormAct2d,
}


def use_groups(norms: list[_BatchNorm], ghost_size: int) -> None:
    """Let these layers take their statistics over groups; parameters, buffers and their names stay.

    Raises:
        ConfigError: A kind of BatchNorm that has no such form.
    """
    others = {type(norm).__name__ for norm in norms if type(norm) not in GHOST_CLASSES}
    if others:
        raise ConfigError(no_groups(sorted(others), ghost_size))
    for norm in norms:
        # Only the forward differs; a new layer would have to copy what each kind of layer holds.
        norm.__class__ = GHOST_CLASSES[type(norm)]
        norm.ghost_size = ghost_size  # type: ignore[assignment]


def no_groups(kinds: list[str], ghost_size: int) -> Problem:
    """What to say where ``ghost_size`` meets layers that cannot do it."""
    what = f"model.batchnorm.ghost_size={ghost_size}: not for layers of the kind {', '.join(kinds)}"
    return Problem(what, "model.batchnorm.ghost_size=null")


def normalize_in_groups(norm: nn.BatchNorm2d, images: torch.Tensor, size: int) -> torch.Tensor:
    """Each ``size`` images of ``[n, c, h, w]`` by their own mean and variance; updates the running ones.

    Raises:
        ValueError: ``size`` does not divide n.
    """
    num_groups, rest = divmod(len(images), size)
    if rest:
        raise ValueError(f"a batch of {len(images)} images does not divide into groups of {size}")
    momentum, mean, var = norm.momentum, None, None
    if norm.track_running_stats:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        mean, var = norm.running_mean, norm.running_var
        if momentum is None:  # torch's cumulative average
            momentum = 1 / float(norm.num_batches_tracked)
    # The kernel updates once a group. With these weights, growing from group to group, the last update leaves
    # all groups with equal shares of the momentum.
    share = (momentum or 0.0) / num_groups
    parts = [
        F.batch_norm(group, mean, var, norm.weight, norm.bias, True, share / (1 - after * share), norm.eps)
        for after, group in zip(range(num_groups - 1, -1, -1), images.split(size), strict=True)
    ]
    return torch.cat(parts)
