"""Student's t, for the interval of a mean of few runs."""

from __future__ import annotations

import statistics

# Two-sided 95 % quantiles of Student's t for 1 to 5 degrees of freedom; ``t_quantile`` computes those of more.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571)


def t_quantile(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t, within 0.002.

    Source: the first terms of Fisher's and Cornish's expansion around the normal quantile (Abramowitz and Stegun,
    26.7.5), which are too few for the lowest degrees of freedom.
    """
    if degrees <= len(T_QUANTILES):
        return T_QUANTILES[degrees - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
