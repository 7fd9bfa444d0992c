"""The data path on a GPU: by hand, where there is one (``pytest -m gpu``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.data.batch import Batch
from fasttrain.data.path import DataPath, build_data_path
from fasttrain.data.scan import scan
from fasttrain.errors import DataError
from fasttrain.stages import Plan
from tests.data.odd_files import extreme_sides, photographs
from tests.data.samples import make_config, make_folder, make_plan, write_cifar10
from tests.data.test_backends import BACKENDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# nvJPEG's transform and colour conversion round differently from libjpeg-turbo's.
MEAN_BOUND = 1.5
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def start(
    root: Path, backend: str, stages: list[dict[str, Any]], device: torch.device, **settings: Any
) -> tuple[Plan, DataPath]:
    config = make_config(stages, root=str(root), backend=backend, **settings)
    found = scan(config)
    plan = make_plan(config, found.num_train)
    return plan, build_data_path(config, found, plan, device=device, rank=0, world_size=1)


def all_batches(plan: Plan, path: DataPath) -> Iterator[Batch]:
    for epoch in plan.epochs:
        for step in path.train_epoch(epoch):
            yield from step
    for px, rectangular in ((40, False), (40, True)):
        yield from path.val_batches(px, rectangular=rectangular)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gpu_and_cpu_agree(folder: Path, backend: str) -> None:
    stages = [{"px": 48, "val_px": 40}, {"px": 32, "batch_size": 4}]
    (plan, on_gpu), (_, on_cpu) = (
        start(folder, name, stages, device) for name, device in ((backend, GPU), ("torchvision", CPU))
    )
    for ours, reference in zip(all_batches(plan, on_gpu), all_batches(plan, on_cpu), strict=True):
        assert ours.images_nhwc.device == ours.labels.device == GPU
        difference = (ours.images_nhwc.cpu().int() - reference.images_nhwc.int()).abs().double()
        print(f"{tuple(ours.images_nhwc.shape)}: mean {difference.mean():.3f}, max {difference.max():.0f}")
        assert difference.mean() < MEAN_BOUND
        assert torch.equal(ours.labels.cpu(), reference.labels)
        assert ours.num_valid == reference.num_valid
    on_gpu.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_are_not_overwritten_while_the_device_is_behind(folder: Path, backend: str) -> None:
    plan, path = start(folder, backend, [{"epochs": 3, "batch_size": 2, "px": 96}], GPU)
    expected = [batch.images_nhwc.cpu() for batch in all_batches(plan, path)]
    busy = torch.randn(4096, 4096, device=GPU)
    kept = []
    for batch in all_batches(plan, path):
        for _ in range(20):  # the device falls behind the host by many batches
            busy = busy @ busy / 64
        kept.append(batch.images_nhwc + 0)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(kept, expected, strict=True))
    path.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_flat_after_ten_stage_changes(folder: Path, backend: str) -> None:
    stages = [{"epochs": 1, "px": px, "batch_size": size} for px, size in ((224, 24), (96, 8)) * 6]
    plan, path = start(folder, backend, stages, GPU)
    free = []
    for epoch in plan.epochs:
        shapes = {tuple(batch.images_nhwc.shape) for step in path.train_epoch(epoch) for batch in step}
        assert shapes == {(epoch.batch_size, epoch.px, epoch.px, 3)}
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info(0)[0])
    used = [torch.cuda.mem_get_info(0)[1] - f for f in free]
    assert used[-1] <= 1.05 * used[2]
    path.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_files_become_three_channels(tmp_path: Path, backend: str) -> None:
    for split in ("train", "val"):
        shown = photographs(tmp_path / split / "a")
        make_folder(tmp_path, {split: {"b": 1}})
    settings = {"val_crop_frac": 1.0}
    (_, on_gpu), (_, on_cpu) = (
        start(tmp_path, name, [{"batch_size": 4, "val_px": 60}], device, **settings)
        for name, device in ((backend, GPU), ("torchvision", CPU))
    )
    (ours,), (reference,) = on_gpu.val_batches(60), on_cpu.val_batches(60)
    difference = (ours.images_nhwc.cpu().int() - reference.images_nhwc.int()).abs().double().mean((1, 2, 3))
    by_name = dict(zip([*shown, "b"], difference.tolist(), strict=False))
    assert {name: mean for name, mean in by_name.items() if mean >= MEAN_BOUND} == {}
    on_gpu.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_sides(tmp_path: Path, backend: str) -> None:
    for split in ("train", "val"):
        names = extreme_sides(tmp_path / split / "a")
        make_folder(tmp_path, {split: {"b": 1}})
    (plan, on_gpu), (_, on_cpu) = (
        start(tmp_path, name, [{"batch_size": len(names) + 1, "px": 24}], device)
        for name, device in ((backend, GPU), ("torchvision", CPU))
    )
    for ours, reference in zip(all_batches(plan, on_gpu), all_batches(plan, on_cpu), strict=True):
        difference = (ours.images_nhwc.cpu().int() - reference.images_nhwc.int()).abs().double().mean((1, 2, 3))
        assert difference.max() < 2 * MEAN_BOUND  # a few pixels are stretched to all, so that nothing averages out
    on_gpu.close()


@pytest.mark.parametrize("frac", [0.5, 0.9, 0.99])
def test_a_jpeg_that_is_cut_off_is_never_filled_with_gray(tmp_path: Path, frac: float) -> None:
    root = make_folder(tmp_path, {split: {"a": 6, "b": 6} for split in ("train", "val")})
    bad = root / "train" / "a" / "003.JPEG"
    whole = bad.read_bytes()
    bad.write_bytes(whole[: int(len(whole) * frac)])
    plan, path = start(root, "dali", [{"batch_size": 12}], GPU)
    with pytest.raises(DataError, match=f"{bad} cannot be decoded"):
        list(path.train_epoch(plan.epochs[0]))
    path.close()
    bad.write_bytes(whole + bytes(64))
    plan, path = start(root, "dali", [{"batch_size": 12}], GPU)
    assert len(list(path.train_epoch(plan.epochs[0]))) == 1
    path.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("content", [b"", b"<html>404</html>", None])
def test_bad_file_is_named(tmp_path: Path, backend: str, content: bytes | None) -> None:
    root = make_folder(tmp_path, {split: {"a": 6, "b": 6} for split in ("train", "val")})
    bad = root / "train" / "a" / "003.JPEG"
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2] if content is None else content)
    plan, path = start(root, backend, [{"batch_size": 6, "min_area": 1.0}], GPU)
    with pytest.raises(DataError, match=str(bad)):
        list(path.train_epoch(plan.epochs[0]))
    path.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("crop", ["padded", "random_resized"])
def test_records_in_memory(tmp_path: Path, backend: str, crop: str) -> None:
    root = write_cifar10(tmp_path, num_per_file=10)
    stages = [{"px": 32, "batch_size": 10}, {"px": 24, "batch_size": 10, "val_px": 24}]
    settings = {"kind": "cifar10", "crop": crop, "val_crop_frac": 1.0, "flip": "alternating"}
    (plan, on_gpu), (_, on_cpu) = (
        start(root, name, stages, device, **settings) for name, device in ((backend, GPU), ("torchvision", CPU))
    )
    for ours, reference in zip(all_batches(plan, on_gpu), all_batches(plan, on_cpu), strict=True):
        difference = (ours.images_nhwc.cpu().int() - reference.images_nhwc.int()).abs().double()
        assert difference.mean() < MEAN_BOUND
        assert torch.equal(ours.labels.cpu(), reference.labels)
    on_gpu.close()
