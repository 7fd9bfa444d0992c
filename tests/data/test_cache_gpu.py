"""The image cache on a GPU: by hand, where there is one (``pytest -m gpu``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.data import cache_registry, rank_cache
from fasttrain.data.cache_memory import Memory
from fasttrain.data.path import DataPath, build_data_path
from fasttrain.data.scan import scan
from fasttrain.stages import Plan
from tests.data import crop_kernel_cases
from tests.data.samples import make_config, make_plan
from tests.data.test_backends import BACKENDS
from tests.data.test_cache import CACHE_PX, PX, assert_equal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    cache_registry.take(None)


def start(root: Path, *, device: torch.device = GPU, precision: str = "fp32", **data: Any) -> tuple[Plan, DataPath]:
    trainer = type("Trainer", (), {"precision": precision, "devices": 1, "num_nodes": 1})
    settings = {"cache": "gpu", "cache_px": CACHE_PX, "run_trainer": trainer, **data}
    config = make_config([{"epochs": 3, "px": PX}], root=str(root), **settings)
    found = scan(config)
    plan = make_plan(config, found.num_train)
    return plan, build_data_path(config, found, plan, device=device, rank=0, world_size=1)


def all_images(root: Path, **settings: Any) -> list[torch.Tensor]:
    plan, path = start(root, **settings)
    images = [
        torch.stack([batch.images_nhwc.cpu() for step in path.train_epoch(epoch) for batch in step])
        for epoch in plan.epochs
    ]
    path.close()
    cache_registry.take(None)
    return images


@pytest.mark.parametrize("flip", ["random", "alternating", "none"])
def test_boxes_are_the_hosts_but_for_a_tiny_share(flip: str) -> None:
    boxes, flips = crop_kernel_cases.differing_boxes(GPU, 100_000, flip=flip, epoch=3)
    assert boxes < 10
    assert flips == 0


@pytest.mark.parametrize("px", [7, 16, 24, 48, 96])
@pytest.mark.parametrize("scattered", [False, True])
def test_kernel_equals_its_twin(px: int, scattered: bool) -> None:
    assert crop_kernel_cases.worst_crop(GPU, px, torch.float32, scattered=scattered) < 5e-5
    assert crop_kernel_cases.worst_crop(GPU, px, torch.bfloat16, scattered=scattered) < 2e-2


def test_gpu_and_cpu_agree(folder: Path) -> None:
    ours, reference = all_images(folder), all_images(folder, device=CPU)
    for one, other in zip(ours, reference, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_host_equals_gpu_and_partial_equals_full(folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    full = all_images(folder, precision=precision)
    assert_equal(all_images(folder, precision=precision, cache="host"), full)
    small = Memory("memory", 11 * CACHE_PX**2 * 3, 0, 0.1)
    for name in ("device_memory", "host_memory"):
        monkeypatch.setattr(rank_cache, name, lambda *_: small)
    for kind in ("gpu", "host"):
        assert_equal(all_images(folder, precision=precision, cache=kind), full)


@pytest.mark.parametrize("kind", ["gpu", "host"])
def test_saved_equals_fresh(folder: Path, tmp_path: Path, kind: str) -> None:
    fresh = all_images(folder, cache=kind)
    assert_equal(all_images(folder, cache=kind, cache_dir=str(tmp_path)), fresh)
    assert len(list(tmp_path.iterdir())) == 8
    assert_equal(all_images(folder, cache=kind, cache_dir=str(tmp_path)), fresh)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["gpu", "host"])
def test_batches_are_not_overwritten_while_the_device_is_behind(folder: Path, backend: str, kind: str) -> None:
    plan, path = start(folder, backend=backend, cache=kind)
    list(path.train_epoch(plan.epochs[0]))  # fills the cache
    expected = [b.images_nhwc.cpu() for epoch in plan.epochs for step in path.train_epoch(epoch) for b in step]
    busy = torch.randn(4096, 4096, device=GPU)
    kept = []
    for epoch in plan.epochs:
        for step in path.train_epoch(epoch):
            for _ in range(20):  # the device falls behind the host by many batches
                busy = busy @ busy / 64
            kept += [batch.images_nhwc + 0 for batch in step]
    assert_equal([images.cpu() for images in kept], expected)
    path.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_first_pass_and_later_ones_give_the_same_pixels(folder: Path, backend: str) -> None:
    plan, path = start(folder, backend=backend, precision="bf16")
    passes = [
        [batch.images_nhwc.cpu() for step in path.train_epoch(plan.epochs[0]) for batch in step] for _ in range(3)
    ]
    # The first images come again in the last batch, decoded a second time in the first pass alone; nvJPEG's two
    # decoders may then differ by a level.
    assert_equal(passes[1][:-1], passes[0][:-1])
    assert_equal(passes[2], passes[1])
    assert passes[0][0].dtype == torch.bfloat16
    path.close()
