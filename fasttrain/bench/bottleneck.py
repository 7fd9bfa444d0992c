"""Which part of the data path, or the training step, limits training: a pure function of measured rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Parts that work at the same time should together reach this share of the slowest one.
OVERLAP_FRAC = 0.9


@dataclass(frozen=True)
class Verdict:
    """What limits training.

    Attributes:
        limit: The part; ``step`` for the training step, ``overlap`` where the parts together are slower than
            each of them alone.
        rate: Images/s that training can reach.
        need: Images/s of the training step; None where it is not known.
    """

    limit: str
    rate: float
    need: float | None

    def sentence(self) -> str:
        """For the reader."""
        if self.need is None:
            return f"{_words(self.limit)}: {self.rate:,.0f} images/s (the step's need was not measured)"
        share = 100 * self.rate / self.need
        if self.limit == "step":
            return f"the training step limits: data keeps up with its {self.need:,.0f} images/s"
        return f"{_words(self.limit)} limits: {self.rate:,.0f} of {self.need:,.0f} images/s ({share:.0f} %)"


def find_bottleneck(parts: Mapping[str, float], together: float, need: float | None) -> Verdict:
    """The slowest of all that must happen to an image.

    Args:
        parts: Images/s of each part alone that the path as configured uses, none of them zero.
        together: Images/s of the whole path.
        need: Images/s of the training step on data that costs nothing; None where it is not known.
    """
    if need is not None and together >= need:
        return Verdict("step", need, need)
    if parts:
        slowest = min(parts, key=lambda name: parts[name])
        if together >= OVERLAP_FRAC * parts[slowest]:
            return Verdict(slowest, together, need)
    return Verdict("overlap" if parts else "together", together, need)


def _words(limit: str) -> str:
    if limit == "overlap":
        return "no part alone, but their overlap"
    return "the data path" if limit == "together" else limit
