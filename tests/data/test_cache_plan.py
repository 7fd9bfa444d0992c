"""What the cache holds when its settings are null, and the arithmetic of its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fasttrain.data import cache_memory
from fasttrain.data.cache_memory import Memory, choose
from fasttrain.data.cache_plan import cache_px, num_shards, serves
from tests.data.samples import make_config

DAWNBENCH = [
    {"epochs": 13, "px": 96, "batch_size": 2048},
    {"epochs": 11, "px": 128, "batch_size": 2048},
    {"epochs": 3, "px": 224, "batch_size": 2048},
    {"epochs": 1, "px": 288, "batch_size": 1024},
]
GB = 10**9


@pytest.mark.parametrize(
    ("stages", "given", "px"),
    [
        (DAWNBENCH, None, 240),  # 24 of 28 epochs are at 128 px or less: 128 / sqrt(0.3) = 233.7, a multiple of 8
        (DAWNBENCH, 128, 128),
        (DAWNBENCH[::-1], None, 240),
        ([{"epochs": 3, "px": 96}, {"epochs": 1, "px": 224}], None, 176),  # just three quarters: 175.3
        ([{"epochs": 2, "px": 96}, {"epochs": 1, "px": 224}], None, 416),  # 409.0
        ([{"epochs": 3, "px": 128, "min_area": 0.35}], None, 224),  # 216.4
        ([{"epochs": 1, "px": 64, "min_area": 0.25}], None, 128),
        ([{"epochs": 1, "px": 50, "min_area": 1.0}], None, 56),
        # The smallest crops may be those of a stage of lower px.
        ([{"epochs": 2, "px": 96, "min_area": 0.09}, {"epochs": 2, "px": 128, "min_area": 0.64}], None, 320),
        ([{"epochs": 1, "px": 288, "min_area": 0.01}], None, 1024),
    ],
)
def test_px_of_the_squares(stages: list[dict[str, Any]], given: int | None, px: int) -> None:
    assert cache_px(make_config(stages, cache_px=given)) == px


@pytest.mark.parametrize(
    ("num_train", "px"),
    [
        (1_281_167, 160),  # 240 px: 221 GB
        (231_482, 160),  # 240 x 240 x 3 = 172,800 bytes each: 40.00009 GB
        (231_481, 240),  # 39.9999 GB
    ],
)
def test_px_of_the_squares_of_many_images(num_train: int, px: int) -> None:
    assert cache_px(make_config(DAWNBENCH, num_train=num_train)) == px
    # What the folder has is known better than what the recipe expects.
    assert cache_px(make_config(DAWNBENCH, num_train=10), num_train) == px


def test_px_of_the_squares_of_many_images_is_never_more_than_crops_need() -> None:
    assert cache_px(make_config([{"px": 128, "min_area": 0.81}], num_train=1_281_167)) == 144  # 142.2


def test_padded_crops_need_squares_of_their_own_px() -> None:
    assert cache_px(make_config([{"px": 96, "min_area": 0.25}], crop="padded")) == 96


def test_a_stage_up_to_the_px_of_the_squares_is_served() -> None:
    assert [serves(160, px) for px in (96, 160, 161, 224)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("batches", "given", "shards"),
    [([2048, 1024], None, 8), ([12], None, 4), ([8, 12], None, 4), ([6], None, 2), ([9], None, 1), ([48], 16, 16)],
)
def test_shards(batches: list[int], given: int | None, shards: int) -> None:
    assert num_shards(make_config([{"batch_size": batch} for batch in batches], num_shards=given)) == shards


@pytest.mark.parametrize(
    ("kind", "device_free", "host_free", "place", "fits"),
    [
        ("gpu", 150, 100, "gpu", 1000),
        ("gpu", 64, 100, "gpu", 500),  # (64 - 14) GB for images of 0.1 GB
        ("gpu", 10, 100, "gpu", 0),
        ("host", 150, 100, "host", 375),  # (100 - 25) GB / 2 ranks
        ("auto", 150, 100, "gpu", 1000),
        ("auto", 64, 225, "host", 1000),
        ("auto", 64, 100, "gpu", 500),
        ("auto", 44, 100, "host", 375),
    ],
)
def test_memory(kind: str, device_free: int, host_free: int, place: str, fits: int) -> None:
    device = Memory("GPU memory", device_free * GB, 140 * GB, 0.1)
    host = Memory("host memory", host_free * GB, 100 * GB, 0.25, sharers=2)
    placement = choose(kind, num_images=1000, image_bytes=GB // 10, device=device, host=host)
    assert (placement.kind, placement.capacity) == (place, fits)
    assert f"{fits:,} of 1,000 images" in placement.words


def test_words_show_the_arithmetic() -> None:
    device = Memory("GPU memory", 64 * GB, 140 * GB, 0.1)
    host = Memory("host memory", 100 * GB, 100 * GB, 0.25, sharers=2)
    words = choose("gpu", num_images=1000, image_bytes=GB // 10, device=device, host=host).words
    assert words == (
        "500 of 1,000 images in GPU memory, 50.0 GB of 100.0 GB; GPU memory: (64.0 GB free - 14.0 GB reserved) "
        "= 50.0 GB; the other 500 are decoded in every epoch"
    )
    assert str(host) == "host memory: (100.0 GB free - 25.0 GB reserved) / 2 ranks = 37.5 GB"


def test_host_memory_heeds_the_containers_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2000 kB\nMemFree:  10 kB\nMemAvailable:   1500 kB\nHugePages_Total:       0\n")
    monkeypatch.setattr(cache_memory, "MEMINFO", meminfo)
    monkeypatch.setattr(cache_memory, "CGROUP", tmp_path)
    assert (cache_memory.host_memory(2).free, cache_memory.host_memory(2).total) == (1500 * 1024, 2000 * 1024)
    (tmp_path / "memory.max").write_text("max\n")
    assert cache_memory.host_memory(1).total == 2000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    limited = cache_memory.host_memory(1)
    assert (limited.free, limited.total, limited.budget) == (600_000, 1_000_000, 350_000)
