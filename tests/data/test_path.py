"""Which image comes when, on which rank, with which label; pixels that say which image they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fasttrain.data.backend import Request
from fasttrain.data.batch import Batch
from fasttrain.data.path import ImageDataPath, build_data_path
from fasttrain.data.scan import Counts, Scan, Split, scan
from fasttrain.stages import Plan
from tests.data.samples import make_config, make_plan

CPU = torch.device("cpu")


class NumberedImages:
    """A back end whose images hold their row in every pixel, and that notes how far ahead it was asked."""

    name = "numbered"

    def images(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        for request in requests:
            rows = torch.from_numpy(request.rows.astype(np.uint8))
            yield request, rows[:, None, None, None].expand(-1, request.height, request.width, 3)

    def close(self) -> None:
        pass


def make_scan(num_train: int, num_val: int, classes: int = 5) -> Scan:
    train, val = (Split([f"/{i}.jpg" for i in range(num)], np.arange(num) % classes) for num in (num_train, num_val))
    counts = Counts(num_train, num_val, classes)
    return Scan("/", tuple("abcde"), train, val, "scan", counts)


def make_paths(
    stages: list[dict[str, Any]], *, num_train: int, num_val: int = 11, ranks: int = 1, **settings: Any
) -> tuple[Plan, list[ImageDataPath]]:
    device_batch = settings.pop("device_batch_size", None)
    config = make_config(stages, **{"crop": "padded", "flip": "none", **settings})
    plan = make_plan(config, num_train, world_size=ranks, device_batch_size=device_batch)
    found = make_scan(num_train, num_val)
    return plan, [
        ImageDataPath(config, found, plan, NumberedImages(), device=CPU, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]


def rows_of(batch: Batch) -> list[int]:
    """Which images a batch holds; its labels and types are checked on the way."""
    rows = batch.images_nhwc[:, 0, 0, 0].long()
    assert batch.images_nhwc.dtype == torch.uint8
    assert batch.labels.dtype == torch.int64
    assert (batch.labels == rows % 5).all()
    assert batch.num_valid <= len(rows)
    return rows.tolist()


def epoch_rows(path: ImageDataPath, plan: Plan, epoch: int, first: int = 0) -> list[list[int]]:
    """Rows of each step of an epoch."""
    steps = path.train_epoch(plan.epochs[epoch], first_step_in_epoch=first)
    return [[row for batch in step for row in rows_of(batch)] for step in steps]


@pytest.mark.parametrize("batch", [4, 8, 24])
def test_all_ranks_have_equal_steps_in_every_epoch(batch: int) -> None:
    plan, paths = make_paths([{"epochs": 4, "batch_size": batch}], num_train=26, ranks=4)
    for epoch in range(4):
        steps = [epoch_rows(path, plan, epoch) for path in paths]
        assert {len(rows) for rows in steps} == {plan.epochs[epoch].steps} == {-(-26 // batch)}
        assert {len(step) for rows in steps for step in rows} == {batch // 4}
        seen = [row for rows in steps for step in rows for row in step]
        assert set(seen) == set(range(26))
        assert len(seen) == 26 + -26 % batch


def test_global_batches_are_the_same_on_any_number_of_ranks() -> None:
    batches = []
    for ranks, device_batch in ((1, None), (1, 4), (2, None), (4, 1)):
        plan, paths = make_paths([{"batch_size": 8}], num_train=26, ranks=ranks, device_batch_size=device_batch)
        steps = [epoch_rows(path, plan, 0) for path in paths]
        batches.append([[row for rows in steps for row in rows[step]] for step in range(4)])
        (first, *_) = paths[0].train_epoch(plan.epochs[0])
        assert len(first) == plan.epochs[0].accumulate
        assert {len(batch.labels) for batch in first} == {plan.micro_batch(plan.epochs[0])}
    assert all(batch == batches[0] for batch in batches)


def test_order_depends_on_seed_and_epoch_alone() -> None:
    rows = {}
    for seed in (1, 2):
        plan, (path,) = make_paths([{}], num_train=26, run_seed=seed)
        rows |= {(seed, epoch): epoch_rows(path, plan, epoch) for epoch in (0, 1)}
    assert len({str(order) for order in rows.values()}) == 4
    plan, (again,) = make_paths([{}], num_train=26)
    assert epoch_rows(again, plan, 1) == rows[1, 1]


def test_resume_goes_on_where_it_stopped() -> None:
    plan, (path,) = make_paths([{"batch_size": 4}], num_train=16)
    whole = epoch_rows(path, plan, 1)
    plan, (fresh,) = make_paths([{"batch_size": 4}], num_train=16)
    assert epoch_rows(fresh, plan, 1, first=2) == whole[2:]
    rest = {row for step in whole[2:] for row in step}
    assert len(rest) == 8
    assert rest.isdisjoint(row for step in whole[:2] for row in step)


def test_a_cut_epoch_stands_for_the_recipes_epoch() -> None:
    config = make_config([{"epochs": 3}, {}], crop="padded", flip="none")
    found = make_scan(26, 11)
    from fasttrain.stages import build_plan

    plan = build_plan(config.stages, num_train=26, world_size=1, device_batch_size=None, steps_per_stage=2)
    path = ImageDataPath(config, found, plan, NumberedImages(), device=CPU, rank=0, world_size=1)
    whole = make_plan(config, 26)
    assert plan.epochs[1].recipe_epoch == 3
    assert epoch_rows(path, plan, 1) == epoch_rows(path, whole, 3)[:2]


def test_validation_counts_every_image_once_after_any_interruption() -> None:
    _, paths = make_paths([{"batch_size": 8}], num_train=26, num_val=10, ranks=4)
    for path in paths:
        next(iter(path.val_batches(32)))  # a sanity check
    counted = [row for path in paths for batch in path.val_batches(32) for row in rows_of(batch)[: batch.num_valid]]
    assert sorted(counted) == list(range(10))
    lengths = {len(path.val_batches(32)) for path in paths}
    assert lengths == {len(list(paths[3].val_batches(32)))}
    assert paths[0].val_shapes(32) == paths[3].val_shapes(32) == [(3, 32, 32)]


def test_validation_in_the_middle_of_an_epoch_disturbs_neither() -> None:
    plan, (path,) = make_paths([{"batch_size": 8}], num_train=26)
    expected = epoch_rows(path, plan, 0)
    steps = path.train_epoch(plan.epochs[0])
    rows = [rows_of(next(steps)[0])]
    assert sum(batch.num_valid for batch in path.val_batches(32)) == 11
    rows += [rows_of(batch) for (batch,) in steps]
    assert rows == expected


def test_padded_crop_and_flip_are_the_samples_own() -> None:
    settings = {"crop": "padded", "flip": "alternating", "pad_px": 4}
    config = make_config([{"batch_size": 4, "px": 16}], **settings)
    images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    split = Split(labels=np.arange(8) % 5, images=images)
    found = Scan("/", tuple("abcde"), split, split, "scan", Counts(8, 8, 5))
    seen = {}
    for ranks in (1, 2):
        plan = make_plan(config, 8, world_size=ranks)
        for rank in range(ranks):
            path = build_data_path(config, found, plan, device=CPU, rank=rank, world_size=ranks)
            for epoch in plan.epochs:
                pixels = [b.images_nhwc for (b,) in path.train_epoch(epoch)]
                seen.setdefault((ranks, epoch.epoch), []).append(torch.stack(pixels))
            path.close()
    for epoch in (0, 1):
        assert (torch.cat(seen[2, epoch], dim=1) == seen[1, epoch][0]).all()
    assert (seen[1, 0][0] != seen[1, 1][0]).any()


def test_synthetic_data_has_the_counts_of_the_config() -> None:
    config = make_config(
        [{"batch_size": 8, "px": 16, "rectangular_val": True}],
        backend="synthetic", num_train=26, num_val=11, num_classes=5,
    )  # fmt: skip
    found = scan(config)
    plan = make_plan(config, found.num_train, world_size=2)
    paths = [build_data_path(config, found, plan, device=CPU, rank=r, world_size=2) for r in range(2)]
    for path in paths:
        steps = list(path.train_epoch(plan.epochs[0]))
        assert [tuple(b.images_nhwc.shape) for (b,) in steps] == [(4, 16, 16, 3)] * 4
        assert steps[0][0].images_nhwc is steps[1][0].images_nhwc
        assert all(0 <= b.labels.min() <= b.labels.max() < 5 for (b,) in steps)
    val = [list(path.val_batches(32, rectangular=True)) for path in paths]
    assert [[b.num_valid for b in batches] for batches in val] == [[6], [5]]
    again = build_data_path(config, found, plan, device=CPU, rank=0, world_size=2)
    assert (next(iter(again.val_batches(32))).images_nhwc == val[0][0].images_nhwc).all()
    assert (
        next(again.train_epoch(plan.epochs[0]))[0].labels == next(paths[0].train_epoch(plan.epochs[0]))[0].labels
    ).all()
