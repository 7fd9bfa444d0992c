"""Settings of the data that cannot go together."""

from __future__ import annotations

import pytest

from fasttrain.config.describe import COMMAND_LINE
from fasttrain.data.check import check, check_given, check_shards
from tests.data.samples import make_config

SYNTHETIC: dict[str, object] = {"backend": "synthetic", "num_train": 9, "num_val": 9, "num_classes": 3}


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        ({}, "data.root=null", "data.root=/path/to/images"),
        ({"num_train": 1281167}, "data.root=null", "data.root=/path/to/imagenet"),
        ({"kind": "cifar10"}, "data.root=null", "data.root=/path/to/cifar10"),
        ({"kind": "cifar10", "run_dry_run": True}, "data.num_train", "data.num_train=50000 data.num_val=10000"),
        ({"backend": "synthetic", "num_val": 9}, "data.num_train, data.num_classes cannot be null", "data.num_train="),
        ({"run_dry_run": True, "num_train": 9, "num_val": 9}, "data.num_classes cannot be null", "num_classes=1000"),
        ({"root": "/x", "num_classes": 12, "model_classes": 10}, "model.num_classes=10", "model.num_classes=12"),
        ({"root": "/x", "crop": "padded", "pad_px": 32}, "stages.0.px=32", "data.pad_px=4"),
        ({"root": "/x", "num_shards": 6}, "data.num_shards=6: stages.0.batch_size=8", "data.num_shards=4, or null"),
        (
            {"root": "/x", "cache_dir": "/y"},
            "data.cache=off keeps no images",
            "data.cache=auto, or data.cache_dir=null",
        ),
        (
            {"root": "/x", "cache": "auto", "augment": "rand-m9-mstd0.5", "cache_dir": "/y"},
            "data.cache_dir=/y, but data.cache=auto keeps nothing with data.augment=rand-m9-mstd0.5",
            "data.augment=none, or data.cache_dir=null",
        ),
        (
            SYNTHETIC | {"cache": "auto", "cache_dir": "/y"},
            "data.cache_dir=/y, but data.backend=synthetic",
            "data.cache_dir=null",
        ),
        ({"root": "/x", "cache": "gpu", "cache_px": 31}, "data.cache_px=31", "data.cache_px=32"),
        ({"root": "/x", "kind": "cifar10", "cache": "gpu", "cache_px": 32}, "data.cache_px=32", "data.cache_px=null"),
        ({"root": "/x", "kind": "cifar10", "cache": "gpu", "cache_dir": "/y"}, "cache_dir=/y", "cache_dir=null"),
        (
            {"backend": "synthetic", "num_train": 9, "num_val": 9, "num_classes": 3, "cache": "gpu"},
            "data.backend=synthetic has no images to keep",
            "data.cache=off",
        ),
    ],
)
def test_problem(settings: dict[str, object], what: str, fix: str) -> None:
    (problem,) = check(make_config(**settings))
    assert what in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize(
    "settings",
    [
        {"root": "/x"},
        {"backend": "synthetic", "num_train": 9, "num_val": 9, "num_classes": 3},
        {"backend": "synthetic", "num_train": 9, "holdout_frac": 0.5, "num_classes": 3},
        {"root": "/x", "crop": "padded", "pad_px": 31},
        {"root": "/x", "num_classes": 12, "model_classes": 12},
        {"root": "/x", "num_shards": 4},
        {"root": "/x", "cache": "auto", "cache_dir": "/y"},
        {"root": "/x", "cache": "gpu", "cache_px": 32},
        {"root": "/x", "kind": "cifar10", "cache": "gpu"},
        {"backend": "synthetic", "num_train": 9, "num_val": 9, "num_classes": 3, "cache": "auto"},
    ],
)
def test_no_problem(settings: dict[str, object]) -> None:
    assert check(make_config(**settings)) == []


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        ({"root": "/x"}, "data.cache_px=64, but data.cache=off", "data.cache=auto, or data.cache_px=null"),
        (SYNTHETIC | {"cache": "auto"}, "data.cache_px=64, but data.backend=synthetic", "data.cache_px=null"),
        (
            {"root": "/x", "cache": "auto", "augment": "augmix-m3-w3"},
            "data.cache_px=64, but data.cache=auto keeps nothing with data.augment=augmix-m3-w3",
            "data.augment=none, or data.cache_px=null",
        ),
    ],
)
def test_px_of_squares_that_nobody_keeps(settings: dict[str, object], what: str, fix: str) -> None:
    config = make_config(**settings | {"cache_px": 64})
    (problem,) = check_given(config, {"data.cache_px": COMMAND_LINE})
    assert what in problem.what
    assert problem.fix == fix
    # A recipe's own is a default, which data.cache=off may be put over.
    assert check_given(config, {"data.cache_px": "recipes/x.yaml"}) == []
    assert check(config) == []


def test_px_of_squares_that_are_kept_may_be_given() -> None:
    config = make_config(root="/x", cache="auto", cache_px=64)
    assert check_given(config, {"data.cache_px": COMMAND_LINE}) == []


@pytest.mark.parametrize(("cache", "ranks", "count"), [("off", 3, 0), ("gpu", 4, 0), ("gpu", 3, 1), ("auto", 16, 1)])
def test_ranks_that_keep_images_need_whole_shards(cache: str, ranks: int, count: int) -> None:
    problems = check_shards(make_config([{"batch_size": 48}], root="/x", cache=cache), ranks)
    assert len(problems) == count
    assert all(f"data.num_shards={ranks}" in problem.fix for problem in problems)


def test_num_shards_of_an_error_is_one_that_fits() -> None:
    stages = [{"batch_size": 48}, {"batch_size": 36}]
    (problem,) = check_shards(make_config(stages, root="/x", num_shards=16), 1)
    assert "stages.1.batch_size=36" in problem.what
    assert "data.num_shards=12," in problem.fix
