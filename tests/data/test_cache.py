"""Training from cached images: the same samples as from files, and the same pixels however the cache came about."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fasttrain.data import cache_registry, rank_cache
from fasttrain.data.augment import RandomResizedCrop, draw_flips, draw_shifts, flip_images, shift_images
from fasttrain.data.backend import Request
from fasttrain.data.cache_memory import Memory
from fasttrain.data.order import epoch_batches, epoch_order
from fasttrain.data.path import ImageDataPath, build_data_path
from fasttrain.data.preprocess import Normalize
from fasttrain.data.scan import Scan, scan
from fasttrain.data.torchvision_backend import TorchvisionBackend
from fasttrain.errors import ConfigError
from fasttrain.stages import Plan
from tests.data.samples import make_config, make_folder, make_plan, write_cifar10

CPU = torch.device("cpu")
PX, CACHE_PX = 24, 40


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    cache_registry.take(None)


class CountingBackend(TorchvisionBackend):
    """Notes the rows that it decodes for training, and the shape."""

    def __init__(self) -> None:
        super().__init__(device=CPU, workers=2)
        self.decoded: list[tuple[int, int]] = []

    def images(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        for request, images in super().images(requests):
            self.decoded += [(row, request.height) for row in request.rows.tolist()]
            yield request, images


def start(
    root: Path,
    stages: list[dict[str, Any]] | None = None,
    *,
    ranks: int = 1,
    device_batch: int | None = None,
    **data: Any,
) -> tuple[Plan, list[ImageDataPath], list[CountingBackend]]:
    """The data paths of all ranks; 26 images, batches of 8 unless told otherwise."""
    settings = {"cache": "gpu", "cache_px": CACHE_PX, **data}
    config = make_config(stages or [{"epochs": 3, "px": PX}], root=str(root), **settings)
    found = scan(config)
    plan = make_plan(config, found.num_train, world_size=ranks, device_batch_size=device_batch)
    backends = [CountingBackend() for _ in range(ranks)]
    paths = [
        ImageDataPath(config, found, plan, backend, device=CPU, rank=rank, world_size=ranks)
        for rank, backend in enumerate(backends)
    ]
    return plan, paths, backends


def epoch_images(plan: Plan, paths: list[ImageDataPath], epoch: int, first: int = 0) -> torch.Tensor:
    """Images of an epoch over all ranks, [steps, batch, px, px, 3]."""
    steps = zip(*(path.train_epoch(plan.epochs[epoch], first_step_in_epoch=first) for path in paths), strict=True)
    return torch.stack([torch.cat([b.images_nhwc for rank in step for b in rank]) for step in steps])


def epoch_labels(plan: Plan, paths: list[ImageDataPath], epoch: int) -> list[list[int]]:
    steps = zip(*(path.train_epoch(plan.epochs[epoch]) for path in paths), strict=True)
    return [[label for rank in step for b in rank for label in b.labels.tolist()] for step in steps]


def all_images(folder: Path, **data: Any) -> list[torch.Tensor]:
    plan, paths, _ = start(folder, **data)
    images = [epoch_images(plan, paths, epoch.epoch) for epoch in plan.epochs]
    for path in paths:
        path.close()
    cache_registry.take(None)
    return images


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        assert torch.equal(ours, theirs)


def test_images_are_decoded_in_the_first_epoch_alone_as_squares(folder: Path) -> None:
    plan, paths, (backend,) = start(folder)
    epoch_images(plan, paths, 0)
    # Of the batches' 32 images, six fill the last one and are not there yet when the epoch is laid out.
    assert {height for _, height in backend.decoded} == {CACHE_PX}
    assert {row for row, _ in backend.decoded} == set(range(26))
    before = len(backend.decoded)
    assert before == 32
    for epoch in (1, 2):
        epoch_images(plan, paths, epoch)
    assert len(backend.decoded) == before


def test_order_and_labels_are_those_without_a_cache(folder: Path) -> None:
    for ranks in (1, 2):
        plan, paths, _ = start(folder, ranks=ranks)
        plan_off, paths_off, _ = start(folder, ranks=ranks, cache="off")
        for epoch in (0, 1):
            assert epoch_labels(plan, paths, epoch) == epoch_labels(plan_off, paths_off, epoch)


def test_pixels_are_the_draws_of_the_sample_cut_from_its_square(folder: Path) -> None:
    plan, (path,), _ = start(folder, [{"epochs": 2, "px": PX, "min_area": 0.3}], flip="random")
    images = epoch_images(plan, [path], 1)
    epoch_images(plan, [path], 0)
    files = scan(make_config(root=str(folder))).train.paths
    rows = epoch_batches(epoch_order(26, 1, 1, num_shards=8), 8, num_shards=8)[2]
    mean, std = torch.tensor([0.485, 0.456, 0.406]) * 255, torch.tensor([0.229, 0.224, 0.225]) * 255
    for place, row in enumerate(rows.tolist()):
        with Image.open(files[row]) as opened:
            square = opened.convert("RGB").resize((CACHE_PX, CACHE_PX), Image.Resampling.BILINEAR)
            size = np.array([[opened.height, opened.width]])
        one = np.array([row])
        box = RandomResizedCrop.draw(1, 1, one, min_area=0.3).boxes(size)[0]
        top, left, bottom, right = (box * CACHE_PX / np.tile(size[0], 2)).tolist()
        crop = square.resize((PX, PX), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
        if draw_flips(1, 1, one, kind="random")[0]:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        ours = images[2, place] * std + mean
        assert (ours - torch.from_numpy(np.array(crop))).abs().max() <= 1.01  # Pillow rounds twice


def test_first_pass_and_later_ones_give_the_same_pixels(folder: Path) -> None:
    plan, paths, _ = start(folder)
    first = epoch_images(plan, paths, 0)
    assert torch.equal(epoch_images(plan, paths, 0), first)


def test_a_run_resumed_in_any_epoch_sees_the_same_pixels(folder: Path) -> None:
    straight = all_images(folder)
    for epoch, step in ((1, 0), (1, 2), (2, 3)):
        plan, paths, _ = start(folder)
        assert torch.equal(epoch_images(plan, paths, epoch, first=step), straight[epoch][step:])
        rest = [epoch_images(plan, paths, later) for later in range(epoch + 1, 3)]
        assert_equal(rest, straight[epoch + 1 :])


def test_an_epoch_left_at_any_step_disturbs_no_other(folder: Path) -> None:
    straight = all_images(folder)
    plan, paths, _ = start(folder)
    for leave in (1, 2):
        steps = paths[0].train_epoch(plan.epochs[0])
        for _ in range(leave):
            next(steps)
        del steps
    assert_equal([epoch_images(plan, paths, epoch) for epoch in (0, 1, 2)], straight)


@pytest.mark.parametrize(
    "settings",
    [
        {"cache": "host"},
        {"cache": "auto"},
        {"ranks": 2},
        {"ranks": 4, "cache": "host"},
        {"device_batch": 2},
        {"ranks": 2, "device_batch": 1, "cache": "host"},
    ],
)
def test_pixels_do_not_depend_on_place_ranks_or_micro_batches(folder: Path, settings: dict[str, Any]) -> None:
    assert_equal(all_images(folder, **settings), all_images(folder))


@pytest.mark.parametrize("kind", ["gpu", "host"])
@pytest.mark.parametrize("fits", [0, 1, 11])
def test_a_partial_cache_gives_the_same_pixels(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, fits: int
) -> None:
    full = all_images(folder)
    small = Memory("memory", fits * CACHE_PX**2 * 3, 0, 0.1)
    for name in ("device_memory", "host_memory"):
        monkeypatch.setattr(rank_cache, name, lambda *_: small)
    with caplog.at_level(logging.INFO, "fasttrain"):
        plan, paths, (backend,) = start(folder, cache=kind)
        assert_equal([epoch_images(plan, paths, epoch) for epoch in (0, 1, 2)], full)
    assert f"{fits} of 26 images" in caplog.text
    assert f"the other {26 - fits} are decoded in every epoch" in caplog.text
    assert {row for row, _ in backend.decoded[32:]} == set(range(fits, 26))


def test_mid_epoch_resume_on_another_number_of_ranks_gives_the_rest_once(folder: Path) -> None:
    stages = [{"epochs": 1, "px": PX, "batch_size": 8}]
    plan, paths, _ = start(folder, stages, ranks=4)
    whole = epoch_images(plan, paths, 0)
    plan, paths, backends = start(folder, stages, ranks=2)
    assert torch.equal(epoch_images(plan, paths, 0, first=2), whole[2:])
    rows = epoch_batches(epoch_order(26, 1, 0, num_shards=8), 8, num_shards=8)
    decoded = sorted(row for backend in backends for row, _ in backend.decoded)
    assert decoded == sorted(rows[2:].reshape(-1).tolist())
    assert set(rows[:2].reshape(-1).tolist()).isdisjoint(rows[2].tolist())
    for rank, backend in enumerate(backends):
        assert {row % 8 // 4 for row, _ in backend.decoded} == {rank}


def test_a_stage_of_higher_px_decodes_from_the_files(folder: Path) -> None:
    stages = [{"epochs": 1, "px": CACHE_PX}, {"epochs": 1, "px": CACHE_PX + 1}]
    plan, (path,), (backend,) = start(folder, stages)
    plan_off, (path_off,), _ = start(folder, stages, cache="off")
    assert path.train_dtype(CACHE_PX) == torch.float32
    assert path.train_dtype(CACHE_PX + 1) == path_off.train_dtype(CACHE_PX) == torch.uint8
    assert epoch_images(plan, [path], 0).dtype == torch.float32
    assert {height for _, height in backend.decoded} == {CACHE_PX}
    assert torch.equal(epoch_images(plan, [path], 1), epoch_images(plan_off, [path_off], 1))


def test_batches_of_every_px_lie_in_blocks_of_one_size(folder: Path) -> None:
    stages = [{"epochs": 1, "px": 24}, {"epochs": 1, "px": 40}, {"epochs": 1, "px": 32, "batch_size": 16}]
    plan, (path,), _ = start(folder, stages)
    for epoch in plan.epochs:
        for (batch,) in path.train_epoch(epoch):
            images = batch.images_nhwc
            assert images.shape == (epoch.batch_size, epoch.px, epoch.px, 3)
            assert images.is_contiguous()
            # float32; 16 images of 32 px are more than 8 of 40 px.
            assert images.untyped_storage().nbytes() == 16 * 32**2 * 3 * 4


def test_validation_is_decoded_once_and_keeps_its_pixels(folder: Path) -> None:
    _, (path,), (backend,) = start(folder)
    _, (path_off,), _ = start(folder, cache="off")
    for rectangular in (False, True):
        expected = [
            (b.images_nhwc, b.labels.tolist(), b.num_valid) for b in path_off.val_batches(32, rectangular=rectangular)
        ]
        next(iter(path.val_batches(32, rectangular=rectangular)))  # left early: not kept
        counts = []
        for _ in range(3):
            batches = path.val_batches(32, rectangular=rectangular)
            ours = list(itertools.islice(batches, len(batches)))
            assert [b.num_valid for b in ours] == [num for _, _, num in expected]
            assert [b.labels.tolist() for b in ours] == [labels for _, labels, _ in expected]
            assert all(torch.equal(b.images_nhwc, images) for b, (images, _, _) in zip(ours, expected, strict=True))
            counts.append(len(backend.decoded))
        assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("pad_px", [0, 3])
def test_records_are_cached_as_they_are(tmp_path: Path, pad_px: int) -> None:
    root = write_cifar10(tmp_path / "cifar", num_per_file=4)
    stages = [{"epochs": 2, "px": 32, "batch_size": 10}]
    settings: dict[str, Any] = {
        "kind": "cifar10",
        "crop": "padded",
        "pad_px": pad_px,
        "flip": "alternating",
        "cache_px": None,
    }
    plan, paths, (backend,) = start(root, stages, **settings)
    plan_off, paths_off, _ = start(root, stages, cache="off", **settings)
    normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    for epoch in (0, 1):
        files = epoch_images(plan_off, paths_off, epoch)
        expected = torch.stack([normalize(step).permute(0, 2, 3, 1) for step in files])
        assert torch.allclose(epoch_images(plan, paths, epoch), expected, rtol=1e-6, atol=1e-6)
        assert epoch_labels(plan, paths, epoch) == epoch_labels(plan_off, paths_off, epoch)
    assert backend.decoded == []


def test_padded_crop_of_files_shifts_the_resized_centre(folder: Path) -> None:
    settings: dict[str, Any] = {"crop": "padded", "pad_px": 4, "flip": "random"}
    plan, paths, _ = start(folder, **settings)
    plain_plan, plain, _ = start(folder, crop="padded", pad_px=0, flip="none")
    rows = epoch_batches(epoch_order(26, 1, 0, num_shards=8), 8, num_shards=8)
    for step, (shifted, whole) in enumerate(
        zip(epoch_images(plan, paths, 0), epoch_images(plain_plan, plain, 0), strict=True)
    ):
        flips = torch.from_numpy(draw_flips(1, 0, rows[step], kind="random"))
        shifts = torch.from_numpy(draw_shifts(1, 0, rows[step], pad_px=4))
        assert torch.allclose(shifted, shift_images(flip_images(whole, flips), shifts), atol=1e-5)


def test_next_job_of_the_process_finds_the_cache(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = all_images(folder)
    plan, paths, _ = start(folder)
    for epoch in (0, 1):
        epoch_images(plan, paths, epoch)
    paths[0].close()
    with caplog.at_level(logging.INFO, "fasttrain"):
        plan, paths, (backend,) = start(folder)
        assert_equal([epoch_images(plan, paths, epoch) for epoch in (0, 1, 2)], first)
    assert backend.decoded == []
    assert "26 images kept from the run before" in caplog.text
    paths[0].close()
    plan, paths, (backend,) = start(folder, cache_px=CACHE_PX + 8)
    epoch_images(plan, paths, 0)
    assert len(backend.decoded) == 32


def test_memory_of_a_kept_cache_is_given_back_when_another_set_comes(folder: Path, tmp_path: Path) -> None:
    plan, paths, _ = start(folder)
    for epoch in (0, 1):
        epoch_images(plan, paths, epoch)
    store = paths[0]._cache.cache.open()  # type: ignore[union-attr]
    paths[0].close()
    assert store.nbytes == 26 * CACHE_PX**2 * 3
    other = make_folder(tmp_path, {split: {"a": 6, "b": 6} for split in ("train", "val")})
    start(other, cache="off")
    assert store.nbytes == 0


def test_a_cache_that_is_not_full_is_not_kept(folder: Path) -> None:
    plan, paths, _ = start(folder)
    next(paths[0].train_epoch(plan.epochs[0]))
    paths[0].close()
    plan, paths, (backend,) = start(folder)
    epoch_images(plan, paths, 0)
    assert len(backend.decoded) == 32


def test_shards_that_do_not_divide_over_the_ranks_are_refused(folder: Path) -> None:
    config = make_config([{"batch_size": 6}], root=str(folder), cache="gpu")
    found = scan(config)
    plan = make_plan(config, found.num_train, world_size=3)
    with pytest.raises(ConfigError, match=r"data\.num_shards=3"):
        build_data_path(config, found, plan, device=CPU, rank=0, world_size=3)


def test_synthetic_images_need_no_cache() -> None:
    config = make_config(backend="synthetic", num_train=26, num_val=11, num_classes=5, cache="auto")
    found: Scan = scan(config)
    path = build_data_path(config, found, make_plan(config, 26), device=CPU, rank=0, world_size=1)
    assert path.train_dtype(32) == torch.uint8
