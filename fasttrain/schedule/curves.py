"""How the learning rate falls after the warm-up: one pure function a schedule.

Each takes ``done_frac``, the share of the epochs after the warm-up that is complete once the update is made
(0 < done_frac <= 1; 1 at the run's last update), and the two learning rates between which it goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Shares of epochs are sums of binary fractions; a drop at 0.3 must not come a step early for that.
ROUNDING = 1e-9


def linear(done_frac: float, peak_lr: float, end_lr: float) -> float:
    """A straight line to ``end_lr``, which the last update uses.

    Source: DAWNBench entry of Alibaba (16 x 8 V100): linear decay from 25 to 0.2.
    """
    return end_lr + (peak_lr - end_lr) * (1 - done_frac)


def cosine(done_frac: float, peak_lr: float, end_lr: float) -> float:
    """Half a cosine to ``end_lr``, which the last update uses.

    Source: arXiv:1608.03983, eq. 5, without restarts.
    """
    return end_lr + (peak_lr - end_lr) * (1 + math.cos(math.pi * done_frac)) / 2


def polynomial(done_frac: float, peak_lr: float, end_lr: float, *, power: float) -> float:
    """``(1 - done_frac) ** power`` of the way down to ``end_lr``, which the last update uses.

    Source: MLPerf training, ResNet-50 closed division: power 2.
    """
    return end_lr + (peak_lr - end_lr) * (1 - done_frac) ** power


def step(done_frac: float, peak_lr: float, end_lr: float, *, drop_at_frac: Sequence[float], factor: float) -> float:
    """``peak_lr`` times ``factor`` for each drop that is behind, never below ``end_lr``.

    An update that completes exactly the share of a drop still uses the rate before it: the drop shows in the
    first update of the next epoch.

    Args:
        done_frac: See the module.
        peak_lr: Learning rate before the first drop.
        end_lr: Floor of the learning rate.
        drop_at_frac: Shares of the epochs after the warm-up, rising, in 0..1.
        factor: Learning rate after a drop over the one before it.

    Source: arXiv:1706.02677, section 5.1: a tenth at epochs 30, 60 and 80 of 90.
    """
    drops = sum(done_frac > drop + ROUNDING for drop in drop_at_frac)
    return max(end_lr, peak_lr * factor**drops)
