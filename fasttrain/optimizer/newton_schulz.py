"""Newton-Schulz rounds: the nearest semi-orthogonal matrix, roughly, by matrix products alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Of x -> a x + b x^3 + c x^5 on the singular values: three to five rounds bring all but the smallest near 1.
# airbench94_muon.py (github.com/KellerJordan/cifar10-airbench).
NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)

# Keeps a zero matrix zero.
EPS = 1e-7


def newton_schulz(matrices: Tensor, *, steps: int, dtype: torch.dtype) -> Tensor:
    """Push the singular values of each matrix towards 1; its singular vectors stay.

    Args:
        matrices: ``[batch, rows, columns]``.
        steps: Rounds.
        dtype: Of the matrix products; the norm is computed before, in the matrices' own.

    Returns:
        ``[batch, rows, columns]`` of ``dtype``; singular values between about 0.7 and 1.2, but for those that
        were tiny beside the others.
    """
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    return rounds((matrices / (norms + EPS)).to(dtype), steps=steps)


def rounds(x: Tensor, *, steps: int, out: Tensor | None = None) -> Tensor:
    """The rounds alone, on matrices of norm 1, ``[batch, rows, columns]``; the last writes to ``out`` if given."""
    a, b, c = NEWTON_SCHULZ
    # The products are of the shorter side's size when that is the rows.
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for done in range(1, steps + 1):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        if done == steps and out is not None:
            x = torch.baddbmm(x, polynomial, x, beta=a, out=out.mT if tall else out)
        else:
            x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def shape_scale(rows: int, columns: int) -> float:
    """``sqrt(max(1, rows / columns))``: makes the update's size that of the layer's outputs.

    Source: kellerjordan.github.io/posts/muon.
    """
    return math.sqrt(max(1.0, rows / columns))
