"""The order of images: a function of (seed, epoch), dealt to any ranks."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain.data.order import epoch_order, micro_batches, step_indices

# Written down once: a run resumes in the same order on any machine and any numpy.
ORDER_OF_8 = [3, 5, 2, 7, 0, 6, 1, 4]
DIGEST_OF_10000 = "d77417a1df7a33bb"


def test_order_is_a_permutation_that_depends_on_seed_and_epoch() -> None:
    orders = {(seed, epoch): epoch_order(100, seed, epoch) for seed in (1, 2) for epoch in (0, 1)}
    for order in orders.values():
        assert sorted(order.tolist()) == list(range(100))
    assert len({tuple(order) for order in orders.values()}) == 4
    assert (epoch_order(100, 1, 1) == orders[1, 1]).all()


def test_order_is_the_same_on_every_machine() -> None:
    assert epoch_order(8, 1, 0).tolist() == ORDER_OF_8
    digest = hashlib.sha256(epoch_order(10_000, 2**32 - 1, 27).astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == DIGEST_OF_10000


def test_last_batch_is_filled_from_the_first_images() -> None:
    order = np.array([4, 2, 0, 1, 3])
    assert [step_indices(order, step, 2).tolist() for step in range(3)] == [[4, 2], [0, 1], [3, 4]]
    with pytest.raises(ValueError):
        step_indices(order, 3, 2)
    with pytest.raises(ValueError):
        step_indices(order, 0, 6)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_ranks_and_parts_share_a_batch_without_overlap(ranks: int, parts: int, size: int) -> None:
    batch = np.arange(ranks * parts * size)
    shares = [micro_batches(batch, rank=r, world_size=ranks, accumulate=parts) for r in range(ranks)]
    assert np.concatenate([part for share in shares for part in share]).tolist() == batch.tolist()
    assert {len(part) for share in shares for part in share} == {size}
