"""Validation batches: every image once over any ranks, equal shapes on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrain.data.validation import MAX_SHAPES, plan_validation, val_batch_size
from tests.data.samples import make_config, make_plan


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_every_image_counts_once(num: int, ranks: int, size: int, rectangular: bool, seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(20, 400, (num, 2)) if rectangular else None
    plans = [
        plan_validation(num, 32, batch_size=size, rank=rank, world_size=ranks, sizes=sizes) for rank in range(ranks)
    ]
    counted = [row for plan in plans for batch in plan for row in batch.rows[: batch.num_valid].tolist()]
    assert sorted(counted) == list(range(num))
    shapes = [[(len(b.rows), b.height, b.width) for b in plan] for plan in plans]
    assert all(shape == shapes[0] for shape in shapes)
    assert all(n == size for n, _, _ in shapes[0])
    assert len({(height, width) for _, height, width in shapes[0]}) <= MAX_SHAPES
    assert all(b.rows.max() < num for plan in plans for b in plan)


def test_ten_images_on_four_ranks() -> None:
    plans = [plan_validation(10, 8, batch_size=2, rank=rank, world_size=4) for rank in range(4)]
    rows = [[b.rows.tolist() for b in plan] for plan in plans]
    assert rows == [[[0, 1], [8, 9]], [[2, 3], [0, 1]], [[4, 5], [2, 3]], [[6, 7], [4, 5]]]
    assert [[b.num_valid for b in plan] for plan in plans] == [[2, 2], [2, 0], [2, 0], [2, 0]]


def test_rectangles_by_hand() -> None:
    # Two tall, two nearly square, two wide images, one panorama among them.
    sizes = np.array([[100, 150], [150, 100], [100, 102], [100, 900], [200, 100], [101, 100]])
    plan = plan_validation(6, 64, batch_size=2, rank=0, world_size=1, sizes=sizes)
    assert [b.rows.tolist() for b in plan] == [[4, 1], [5, 2], [0, 3]]
    # Mean ratios 0.583, 1.005, 5.25 (cut at 2).
    assert [(b.height, b.width) for b in plan] == [(112, 64), (64, 64), (64, 128)]


def test_many_batches_share_few_shapes() -> None:
    sizes = np.stack([np.full(4000, 200), np.linspace(110, 380, 4000).astype(int)], axis=1)
    plan = plan_validation(4000, 96, batch_size=50, rank=0, world_size=1, sizes=sizes)
    shapes = [(b.height, b.width) for b in plan]
    assert len(plan) == 80
    assert 5 <= len(set(shapes)) <= MAX_SHAPES
    assert all(min(shape) == 96 and max(shape) % 8 == 0 for shape in shapes)


@pytest.mark.parametrize(
    ("px", "num_val", "ranks", "expected"),
    [(32, 5000, 1, 64), (64, 5000, 1, 512), (96, 5000, 1, 64), (32, 5000, 2, 64), (32, 100, 2, 50), (32, 1, 4, 1)],
)
def test_batch_size(px: int, num_val: int, ranks: int, expected: int) -> None:
    config = make_config([{"val_px": 32, "batch_size": 32}, {"val_px": 64, "batch_size": 2048}])
    plan = make_plan(config, 5000, world_size=ranks)
    assert val_batch_size(plan, px, num_val=num_val, world_size=ranks) == expected
