"""SGD's share of the hybrid update over the run: a pure function."""

from __future__ import annotations

import math


def sgd_share(epochs_done: float, center_epochs: float, period_epochs: float) -> float:
    """Share of the update that is SGD's; the adaptive part has the rest.

    With e the epochs done, c the center and p the period::

        e < c            0.5 exp(2 (e - c) / p)
        c <= e < c + p/2 0.5 + (e - c) / p
        later            1

    Both pieces meet at e = c with value 1/2 and slope 1/p, and the second reaches 1 without a jump.

    Args:
        epochs_done: Epochs completed after the update, fractional.
        center_epochs: Where both parts have half.
        period_epochs: Length scale of the transition, more than 0.

    Returns:
        A share in (0, 1], never falling with ``epochs_done``.

    Source: arXiv:1711.04325, eq. 5. Its public code has the slope 2/p after the center and goes on to 1.3
    before it is set to 1; here the slopes match.
    """
    distance = (epochs_done - center_epochs) / period_epochs
    if distance < 0:
        return 0.5 * math.exp(2 * distance)
    return min(0.5 + distance, 1.0)


def transition_end_epochs(center_epochs: float, period_epochs: float) -> float:
    """Epochs done from which on all of the update is SGD's."""
    return center_epochs + period_epochs / 2
