"""Settings of the data that cannot go together."""

from __future__ import annotations

import pytest

from fasttrain.data.check import check
from tests.data.samples import make_config


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
    ],
)
def test_no_problem(settings: dict[str, object]) -> None:
    assert check(make_config(**settings)) == []
