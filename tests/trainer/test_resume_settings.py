"""A resume with other settings: what the new ones decide, and what is refused in words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.errors import Problem
from fasttrain.trainer.resume_check import _check_optimizer

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


def saved_with(optimizer: dict[str, Any]) -> list[Problem]:
    """What is said of a resume into ``optimizer=sgd``."""
    return _check_optimizer(optimizer, {"kind": "sgd"}, Path("last.ckpt"))


def test_another_optimizer_is_refused_by_name_and_its_own_is_named() -> None:
    for then, fix in (
        ({"kind": "hybrid"}, "optimizer=hybrid,"),
        ({"kind": "torch", "name": "AdamW"}, "optimizer=torch optimizer.name=AdamW,"),
        ({"kind": "timm", "name": "lamb"}, "optimizer=timm optimizer.name=lamb,"),
    ):
        (problem,) = saved_with(then)
        assert "this run has optimizer=sgd" in problem.what
        assert problem.fix.startswith(fix)
    adam, adamw = ({"kind": "torch", "name": name} for name in ("Adam", "AdamW"))
    assert _check_optimizer(adam, adamw, Path("last.ckpt"))
    assert not _check_optimizer(adam, dict(adam), Path("last.ckpt"))


def test_torchs_sgd_and_the_own_one_go_on_from_each_other() -> None:
    assert saved_with({"kind": "sgd"}) == saved_with({"kind": "torch", "name": "SGD"}) == []


@pytest.mark.parametrize("force", ["false", "true"])
def test_a_resume_with_another_optimizer_ends_in_words(
    finished: Path, train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], force: str
) -> None:
    run_dir = after_epoch_two(finished, train_tiny, tmp_path / "run")
    assert train_tiny(f"run_dir={run_dir}", "optimizer=hybrid", "resume=auto", f"resume_force={force}") == 2
    error = capsys.readouterr().err
    assert "holds the averages of optimizer=sgd, this run has optimizer=hybrid" in error
    assert step_of(run_dir) == 8


def test_a_resume_needs_no_file_and_no_network_for_first_weights(
    finished: Path,
    train_tiny: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fasttrain.model.hub.unreachable", lambda name: "no network")
    for number, weights in enumerate((f"model.init_from={tmp_path / 'gone.ckpt'}", "model.pretrained=true")):
        run_dir = after_epoch_two(finished, train_tiny, tmp_path / f"run{number}")
        again = ["optimizer=sgd", "resume=auto", "resume_force=true", weights]
        assert train_tiny(f"run_dir={run_dir}", *again) == 0
        assert step_of(run_dir) == 10
        assert train_tiny(f"run_dir={tmp_path / f'new{number}'}", *again) != 0
    error = capsys.readouterr().err
    assert "no such file" in error
    assert "no network" in error


@pytest.mark.parametrize("setting", ["model.ensemble=2", "model.name=resnet10t"])
def test_another_network_is_neither_taken_nor_offered_to_be_forced(
    finished: Path, train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    run_dir = after_epoch_two(finished, train_tiny, tmp_path / "run")
    again = [f"run_dir={run_dir}", "optimizer=sgd", "resume=auto", setting]
    key, value = setting.split("=")
    for force in ("false", "true"):
        assert train_tiny(*again, f"resume_force={force}") == 2
        error = capsys.readouterr().err
        assert f"{key} was " in error
        assert f"is now {value}" in error
        assert f"fix: {key}=" in error
        assert "resume_force" not in error
