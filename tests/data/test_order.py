"""The order of images: a function of (seed, epoch), dealt to any ranks."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain.data.order import epoch_batches, epoch_order, micro_batches

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
    assert epoch_batches(order, 2).tolist() == [[4, 2], [0, 1], [3, 4]]
    for batch, shards in ((6, 1), (0, 1), (4, 3)):
        with pytest.raises(ValueError):
            epoch_batches(order, batch, num_shards=shards)


def test_last_batch_of_each_shard_is_filled_from_its_first_images() -> None:
    # Nine samples in two shards, [8, 2, 0, 6, 4] and [5, 7, 3, 1]: the second is through after the first batch.
    order = np.array([8, 2, 0, 6, 4, 5, 7, 3, 1])
    assert epoch_batches(order, 8, num_shards=2).tolist() == [[8, 2, 0, 6, 5, 7, 3, 1], [4, 8, 2, 0, 5, 7, 3, 1]]


def test_shards_keep_the_order_of_the_whole() -> None:
    assert epoch_order(8, 1, 0, num_shards=1).tolist() == ORDER_OF_8
    assert epoch_order(8, 1, 0, num_shards=2).tolist() == [2, 0, 6, 4, 3, 5, 7, 1]


@given(st.data())
def test_every_sample_comes_once_but_for_the_fill_and_to_the_rank_that_owns_it(data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, 8))
    part = data.draw(st.integers(1, 4))
    batch = shards * part
    samples = data.draw(st.integers(batch, batch * 5 + shards))
    ranks = data.draw(st.sampled_from([count for count in range(1, shards + 1) if shards % count == 0]))
    order = epoch_order(samples, 3, data.draw(st.integers(0, 3)), num_shards=shards)
    batches = epoch_batches(order, batch, num_shards=shards)
    assert batches.shape == (-(-samples // batch), batch)
    times = np.bincount(batches.reshape(-1), minlength=samples)
    assert len(times) == samples
    assert times.min() == 1
    assert times.max() <= 2
    # A sample that comes twice is among its shard's first.
    for shard in range(shards):
        own = order[order % shards == shard]
        repeated = int((times[own] == 2).sum())
        assert repeated <= part
        assert (times[own[:repeated]] == 2).all()
    for rank in range(ranks):
        share = np.stack([micro_batches(step, rank=rank, world_size=ranks, accumulate=1)[0] for step in batches])
        assert set((share % shards).reshape(-1) // (shards // ranks)) == {rank}


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_ranks_and_parts_share_a_batch_without_overlap(ranks: int, parts: int, size: int) -> None:
    batch = np.arange(ranks * parts * size)
    shares = [micro_batches(batch, rank=r, world_size=ranks, accumulate=parts) for r in range(ranks)]
    assert np.concatenate([part for share in shares for part in share]).tolist() == batch.tolist()
    assert {len(part) for share in shares for part in share} == {size}
