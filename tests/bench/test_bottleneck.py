"""What limits training, against tables worked out by hand."""

from __future__ import annotations

import pytest

from fasttrain.bench.bottleneck import find_bottleneck


@pytest.mark.parametrize(
    ("parts", "together", "need", "limit", "rate"),
    [
        ({"read": 50_000, "backend": 20_000}, 19_500, 36_000, "backend", 19_500),
        ({"read": 5_000, "backend": 20_000}, 4_900, 36_000, "read", 4_900),
        # Data keeps up: what the parts do alone does not matter.
        ({"read": 50_000, "backend": 40_000}, 38_000, 36_000, "step", 36_000),
        ({"read": 50_000, "backend": 40_000}, 36_000, 36_000, "step", 36_000),
        # Two parts that take turns on the same cores: 1 / (1/10 + 1/10) = 5.
        ({"read": 10_000, "backend": 10_000}, 5_000, 36_000, "overlap", 5_000),
        # 90 % of the slowest is where overlap begins to be at fault.
        ({"backend": 10_000}, 9_000, 36_000, "backend", 9_000),
        ({"backend": 10_000}, 8_999, 36_000, "overlap", 8_999),
        ({"read": 50_000, "backend": 20_000}, 19_000, None, "backend", 19_000),
        # A cache: no part is known to be slower than the whole.
        ({}, 1_000, 36_000, "together", 1_000),
        ({}, 1_000, None, "together", 1_000),
    ],
)
def test_limits(parts: dict[str, float], together: float, need: float | None, limit: str, rate: float) -> None:
    verdict = find_bottleneck(parts, together, need)
    assert (verdict.limit, verdict.rate, verdict.need) == (limit, rate, need)


@pytest.mark.parametrize(
    ("parts", "together", "need", "sentence"),
    [
        ({"backend": 20_000}, 18_000, 36_000, "backend limits: 18,000 of 36,000 images/s (50 %)"),
        ({"backend": 40_000}, 40_000, 36_000, "the training step limits: data keeps up with its 36,000 images/s"),
        ({}, 9_000, 36_000, "the data path limits: 9,000 of 36,000 images/s (25 %)"),
        (
            {"backend": 40_000},
            9_000,
            36_000,
            "no part alone, but their overlap limits: 9,000 of 36,000 images/s (25 %)",
        ),
        ({"read": 20_000}, 20_000, None, "read: 20,000 images/s (the step's need was not measured)"),
    ],
)
def test_sentences(parts: dict[str, float], together: float, need: float | None, sentence: str) -> None:
    assert find_bottleneck(parts, together, need).sentence() == sentence
