"""DALI's CPU pipelines and the fallback: the same files, labels, order, crops and (nearly) pixels."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fasttrain.data.augment import draw_flips
from fasttrain.data.batch import Batch
from fasttrain.data.order import epoch_order
from fasttrain.data.path import ImageDataPath, build_data_path
from fasttrain.data.scan import scan
from fasttrain.data.validation import MIN_BATCH
from fasttrain.errors import MachineError
from fasttrain.stages import Plan
from tests.data.samples import make_config, make_folder, make_plan, write_cifar10

CPU = torch.device("cpu")
needs_dali = pytest.mark.skipif(not importlib.util.find_spec("nvidia.dali"), reason="DALI is not installed")
BACKENDS = ["torchvision", pytest.param("dali", marks=needs_dali)]

# How far a pixel of DALI's may be from the fallback's, of 255 levels: both decode with libjpeg-turbo and
# filter with a triangle; Pillow rounds between the two directions.
MEAN_BOUND, MAX_BOUND = 0.3, 2


class Opened:
    """Opens data paths of one folder and closes them at the test's end."""

    def __init__(self) -> None:
        self.paths: list[ImageDataPath] = []

    def __call__(
        self,
        root: Path,
        backend: str,
        stages: list[dict[str, Any]] | None = None,
        *,
        rank: int = 0,
        ranks: int = 1,
        **settings: Any,
    ) -> tuple[Plan, ImageDataPath]:
        config = make_config(stages, root=str(root), backend=backend, **settings)
        found = scan(config)
        plan = make_plan(config, found.num_train, world_size=ranks)
        path = build_data_path(config, found, plan, device=CPU, rank=rank, world_size=ranks)
        assert isinstance(path, ImageDataPath)
        self.paths.append(path)
        return plan, path


@pytest.fixture
def opened() -> Iterator[Opened]:
    opener = Opened()
    yield opener
    for path in opener.paths:
        path.close()


def train_batches(plan: Plan, path: ImageDataPath, epoch: int = 0) -> list[Batch]:
    return [batch for step in path.train_epoch(plan.epochs[epoch]) for batch in step]


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.images_nhwc, other.images_nhwc)
        assert torch.equal(one.labels, other.labels)
        assert one.num_valid == other.num_valid


def assert_close(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        difference = (one.images_nhwc.int() - other.images_nhwc.int()).abs().double()
        assert difference.mean() < MEAN_BOUND
        assert difference.max() <= MAX_BOUND
        assert torch.equal(one.labels, other.labels)
        assert one.num_valid == other.num_valid


@pytest.mark.parametrize("backend", BACKENDS)
def test_flipped_images_are_the_same_ones_mirrored(folder: Path, opened: Opened, backend: str) -> None:
    plain_plan, plain = opened(folder, backend, [{"batch_size": 26}], flip="none")
    plan, path = opened(folder, backend, [{"batch_size": 26}], flip="random")
    (first,), (second,) = train_batches(plain_plan, plain), train_batches(plan, path)
    same = (first.images_nhwc == second.images_nhwc).flatten(1).all(1)
    mirrored = (first.images_nhwc.flip(2) == second.images_nhwc).flatten(1).all(1)
    assert (same ^ mirrored).all()
    order = epoch_order(26, seed=1, epoch=0, num_shards=2)
    assert mirrored.tolist() == draw_flips(1, 0, order, kind="random").tolist()


@needs_dali
@pytest.mark.parametrize("crop", ["random_resized", "padded"])
def test_dali_and_the_fallback_agree(folder: Path, opened: Opened, crop: str) -> None:
    stages = [{"px": 48, "val_px": 40}]
    (plan, dali), (_, fallback) = (opened(folder, name, stages, crop=crop) for name in ("dali", "torchvision"))
    for epoch in (0, 1):
        assert_close(train_batches(plan, dali, epoch), train_batches(plan, fallback, epoch))
    for rectangular in (False, True):
        val = [list(path.val_batches(40, rectangular=rectangular)) for path in (dali, fallback)]
        assert_close(*val)
        assert sum(batch.num_valid for batch in val[0]) == 11
        shapes = [tuple(batch.images_nhwc.shape[:3]) for batch in val[0]]
        assert shapes == dali.val_shapes(40, rectangular=rectangular)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_is_what_one_decodes_by_hand(folder: Path, opened: Opened, backend: str) -> None:
    _, path = opened(folder, backend, [{"val_px": 56}])
    (batch,) = path.val_batches(56)
    with Image.open(folder / "val" / "ant" / "000.JPEG") as image:
        side = min(image.size)
        resized = image.resize((64 * image.width // side, 64 * image.height // side), Image.Resampling.BILINEAR)
    left, top = round((resized.width - 56) / 2), round((resized.height - 56) / 2)
    expected = np.asarray(resized.crop((left, top, left + 56, top + 56))).astype(int)
    assert np.abs(batch.images_nhwc[0].numpy().astype(int) - expected).max() <= MAX_BOUND


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_see_their_part_of_the_same_images(folder: Path, opened: Opened, backend: str) -> None:
    plan, alone = opened(folder, backend)
    two = [opened(folder, backend, rank=rank, ranks=2) for rank in range(2)]
    shares = [train_batches(*pair) for pair in two]
    for whole, first, second in zip(train_batches(plan, alone), *shares, strict=True):
        assert torch.equal(whole.images_nhwc, torch.cat([first.images_nhwc, second.images_nhwc]))
        assert not torch.equal(first.images_nhwc, second.images_nhwc)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_of_an_epoch_that_was_left_comes_later(folder: Path, opened: Opened, backend: str) -> None:
    stages = [{"epochs": 2, "px": 32}, {"epochs": 1, "px": 48, "batch_size": 4}]
    plan, path = opened(folder, backend, stages)
    expected = [train_batches(plan, path, epoch) for epoch in range(3)]
    val = list(path.val_batches(32))
    for _ in range(2):
        left = path.train_epoch(plan.epochs[0])
        next(left)
        next(iter(path.val_batches(32)))
        # The iterators above are still open, their batches read ahead.
        assert_same(train_batches(plan, path, 1), expected[1])
        assert_same(list(path.val_batches(32)), val)
        new_stage = train_batches(plan, path, 2)
        assert {tuple(batch.images_nhwc.shape) for batch in new_stage} == {(4, 48, 48, 3)}
        assert_same(new_stage, expected[2])
        assert_same([batch for step in left for batch in step], expected[0][1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_may_be_kept(folder: Path, opened: Opened, backend: str) -> None:
    plan, path = opened(folder, backend, [{"batch_size": 2}])
    kept, copies = [], []
    for (batch,) in path.train_epoch(plan.epochs[0]):
        kept.append(batch)
        copies.append(Batch(batch.images_nhwc.clone(), batch.labels.clone(), batch.num_valid))
    assert_same(kept, copies)


@pytest.mark.parametrize("backend", BACKENDS)
def test_first_images_may_be_more_than_the_largest_batch(opened: Opened, tmp_path: Path, backend: str) -> None:
    # A network that whitens its inputs looks at thousands.
    count = MIN_BATCH + 5
    make_folder(tmp_path, {"train": {"ant": count}, "val": {"ant": 1}})
    _, path = opened(tmp_path, backend, [{"batch_size": 2}])
    images = path.first_train_images(count, 32)
    assert images.shape == (count, 32, 32, 3)
    for number in (1, MIN_BATCH // 2, MIN_BATCH):
        assert torch.equal(images[number - 1], path.first_train_images(number, 32)[-1])


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_threads_do_not_change_the_images(folder: Path, opened: Opened, workers: int) -> None:
    plan, path = opened(folder, "torchvision", workers=workers)
    reference_plan, reference = opened(folder, "torchvision", workers=2)
    assert_same(train_batches(plan, path), train_batches(reference_plan, reference))


@pytest.mark.parametrize("backend", BACKENDS)
def test_paths_with_spaces_links_and_other_scripts(tmp_path: Path, opened: Opened, backend: str) -> None:
    elsewhere = make_folder(tmp_path / "other", {"x": {"y": 3}}) / "x" / "y"
    root = make_folder(tmp_path / "image net", {split: {"图像": 3, "a b": 4} for split in ("train", "val")})
    for split in ("train", "val"):
        (root / split / "linked").symlink_to(elsewhere)
    (root / "train" / "a b" / "000.JPEG").rename(root / "train" / "a b" / "x.Jpg")
    plan, path = opened(root, backend, [{"batch_size": 5}])
    labels = [label for batch in train_batches(plan, path) for label in batch.labels.tolist()]
    assert sorted(labels) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sum(batch.num_valid for batch in path.val_batches(32)) == 10


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("crop", ["padded", "random_resized"])
def test_records_in_memory(tmp_path: Path, opened: Opened, backend: str, crop: str) -> None:
    root = write_cifar10(tmp_path, num_per_file=6)
    stages = [{"px": 32, "batch_size": 10}, {"px": 24, "batch_size": 10, "val_px": 24}]
    plan, path = opened(root, backend, stages, kind="cifar10", crop=crop, pad_px=0, flip="none", val_crop_frac=1.0)
    images = scan(make_config(kind="cifar10", root=str(root))).val.images
    assert images is not None
    (val,) = path.val_batches(32)
    assert (val.images_nhwc.numpy() == images).all()
    _, reference = opened(
        root, "torchvision", stages, kind="cifar10", crop=crop, pad_px=0, flip="none", val_crop_frac=1.0
    )
    for epoch in (0, 2):
        assert_close(train_batches(plan, path, epoch), train_batches(plan, reference, epoch))
    assert_close(list(path.val_batches(24)), list(reference.val_batches(24)))


def test_records_are_cropped_after_resizing(tmp_path: Path, opened: Opened) -> None:
    root = write_cifar10(tmp_path, num_per_file=4)
    _, path = opened(root, "torchvision", kind="cifar10", val_crop_frac=0.8)
    images = scan(make_config(kind="cifar10", root=str(root))).val.images
    assert images is not None
    (val,) = path.val_batches(24)
    for ours, image in zip(val.images_nhwc.numpy(), images, strict=True):
        resized = Image.fromarray(image).resize((30, 30), Image.Resampling.BILINEAR).crop((3, 3, 27, 27))
        assert np.abs(ours.astype(int) - np.asarray(resized).astype(int)).max() <= MAX_BOUND


def test_auto_takes_dali_for_files_and_not_for_records(
    folder: Path, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    if importlib.util.find_spec("nvidia.dali"):
        assert opened(folder, "auto")[1].backend.name == "dali"
    root = write_cifar10(tmp_path, num_per_file=4)
    assert opened(root, "auto", kind="cifar10")[1].backend.name == "torchvision"
    monkeypatch.setitem(sys.modules, "fasttrain.data.dali_backend", None)
    said.clear()
    assert opened(folder, "auto")[1].backend.name == "torchvision"
    opened(folder, "auto", rank=1, ranks=2)
    assert [line.split("(")[0] for line in said] == ["data.backend=auto: torchvision, since DALI cannot be imported "]
    with pytest.raises(MachineError, match=r"pip install nvidia-dali[^\n]*data.backend=torchvision"):
        opened(folder, "dali")


@needs_dali
def test_dali_that_cannot_start_is_the_machines_fault(
    folder: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fasttrain.data import dali_backend, dali_stages

    def refuse(**_: Any) -> None:
        raise RuntimeError("CUDA driver is too old")

    monkeypatch.setattr(dali_stages.Pipeline, "build", lambda self: refuse())
    with pytest.raises(MachineError, match=r"DALI [\d.]+ failed on cpu: CUDA driver is too old"):
        opened(folder, "dali")
    assert dali_backend.DaliBackend.name == "dali"


@needs_dali
@pytest.mark.parametrize("kind", ["imagefolder", "cifar10"])
def test_dali_tries_a_batch_twice(
    folder: Path, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from fasttrain.data.dali_stages import Stage, StageError

    root = folder if kind == "imagefolder" else write_cifar10(tmp_path, num_per_file=4)
    plan, path = opened(root, "dali", kind=kind)
    expected = train_batches(plan, path)
    take = Stage.take

    def fail(times: list[int]) -> None:
        def failing(stage: Stage, stream: Any = None) -> Any:
            times.append(1)
            if len(times) == 5:
                raise StageError("connection timed out")
            return take(stage, stream)

        monkeypatch.setattr(Stage, "take", failing)

    fail([])
    assert_same(train_batches(plan, path), expected)
    monkeypatch.setattr(Stage, "take", take)
    steps = path.train_epoch(plan.epochs[0])
    next(steps)
    monkeypatch.setattr(path.backend, "_take", lambda request: (_ for _ in ()).throw(StageError("no memory")))
    with pytest.raises(MachineError, match="failed on cpu: no memory"):
        next(steps)


@needs_dali
def test_dali_decodes_on_the_ranks_own_device() -> None:
    from fasttrain.data.dali_stages import headers, pixels

    for index in (0, 1):
        device = torch.device("cuda", index)
        assert pixels(batch_size=1, threads=1, device=device, encoded=True).device_id == index
    assert pixels(batch_size=1, threads=1, device=CPU, encoded=True).device_id is None
    assert headers(batch_size=1, threads=1).device_id is None
