"""A resume with other settings: what the new ones decide, and what is refused in words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Train = Callable[..., int]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finished") / "run"


def after_epoch_two(finished: Path, train_tiny: Train, run_dir: Path) -> Path:
    """A run of three epochs of which two are done, with SGD."""
    if not finished.exists():
        assert train_tiny(f"run_dir={finished}", "optimizer=sgd") == 0
    shutil.copytree(finished, run_dir)
    (run_dir / "checkpoints" / "previous.ckpt").replace(run_dir / "checkpoints" / "last.ckpt")
    shutil.rmtree(run_dir / "report")
    return run_dir


def step_of(run_dir: Path) -> int:
    return int(torch.load(run_dir / "checkpoints" / "last.ckpt")["fasttrain"]["step"])


@pytest.mark.parametrize(
    ("target", "step"),
    [
        (["target.value=99.9"], 10),  # raised
        (["target.value=0.1"], 8),  # lowered: passed already
        (["target.metric=top5", "target.value=0.1"], 8),
        (["target.metric=top5", "target.value=99.9"], 10),
    ],
)
def test_the_present_target_decides_whether_a_run_is_finished(
    finished: Path, train_tiny: Train, tmp_path: Path, target: list[str], step: int
) -> None:
    run_dir = after_epoch_two(finished, train_tiny, tmp_path / "run")
    assert train_tiny(f"run_dir={run_dir}", "optimizer=sgd", "resume=auto", "target.stop=true", *target) == 0
    assert step_of(run_dir) == step


def test_the_best_of_another_metric_is_taken_from_the_epochs_before(
    finished: Path, train_tiny: Train, tmp_path: Path
) -> None:
    run_dir = after_epoch_two(finished, train_tiny, tmp_path / "run")
    assert train_tiny(f"run_dir={run_dir}", "optimizer=sgd", "resume=auto", "target.metric=top5") == 0
    callbacks = torch.load(run_dir / "checkpoints" / "last.ckpt")["callbacks"]
    top5 = [row["top5"] for row in callbacks["ReportCallback"]["rows"]]
    assert callbacks["Checkpoints"]["best_accuracy"] == max(top5)
