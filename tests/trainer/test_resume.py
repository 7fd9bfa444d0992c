"""A run that stopped and goes on equals one that never stopped."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.trainer.module import ClassifierModule

Train = Callable[..., int]

# What a clock writes; all other columns of metrics.csv must be equal to the last digit.
CLOCKS = {"seconds", "wall_seconds", "images_per_second"}


def rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCKS} for row in csv.DictReader(file)]


def weights(run_dir: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return torch.load(run_dir / "checkpoints" / f"{name}.ckpt")["state_dict"]


def assert_same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("straight") / "run"


def train_straight(straight: Path, train_tiny: Train) -> None:
    if not straight.exists():
        assert train_tiny(f"run_dir={straight}") == 0


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int) -> None:
    """Send this process a signal once ``step`` updates are done."""
    original = ClassifierModule.on_train_batch_end

    def hook(self: ClassifierModule, *args: Any) -> None:
        original(self, *args)
        if self.step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(ClassifierModule, "on_train_batch_end", hook)


@pytest.mark.parametrize(
    ("step", "number", "code"),
    [(2, signal.SIGINT, 130), (4, signal.SIGTERM, 143), (5, signal.SIGUSR1, 143), (8, signal.SIGINT, 130)],
    ids=["mid-first-epoch", "epoch-end", "mid-second-epoch", "mid-last-stage"],
)
def test_stopped_by_a_signal_and_resumed_equals_the_straight_run(
    straight: Path,
    train_tiny: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    number: int,
    code: int,
) -> None:
    train_straight(straight, train_tiny)
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(patch, step, number)
        assert train_tiny(f"run_dir={run_dir}") == code
    stopped = torch.load(run_dir / "checkpoints" / "last.ckpt")
    # The signal is looked for before each step's last hook, so it is seen one step later inside an epoch.
    assert stopped["fasttrain"]["step"] == stopped["global_step"] in (step, step + 1)
    assert train_tiny(f"run_dir={run_dir}", "resume=auto") == 0
    assert rows(run_dir) == rows(straight)
    assert_same_weights(weights(run_dir), weights(straight))


def test_a_finished_run_is_left_as_it_is(straight: Path, train_tiny: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train_straight(straight, train_tiny)
    before = {path: path.read_bytes() for path in straight.rglob("*") if path.suffix in (".ckpt", ".csv", ".json")}
    assert train_tiny(f"run_dir={straight}", "resume=auto") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before


def test_data_of_other_classes_is_refused(
    straight: Path,
    train_tiny: Train,
    tmp_path: Path,
    tiny_images: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_straight(straight, train_tiny)
    root = tmp_path / "images"
    for split in ("train", "val"):
        for folder in sorted((tiny_images / split).iterdir()):
            name = "aaa" if folder.name.startswith("star_s") else folder.name
            shutil.copytree(folder, root / split / name)
    last = straight / "checkpoints" / "last.ckpt"
    assert train_tiny(f"run_dir={tmp_path / 'run'}", f"resume={last}", f"data.root={root}") == 3
    error = capsys.readouterr().err
    assert "labels would be shifted" in error
    assert "/ aaa" in error


def test_a_finished_run_whose_report_is_missing_gets_it(straight: Path, train_tiny: Train, tmp_path: Path) -> None:
    train_straight(straight, train_tiny)
    run_dir = tmp_path / "run"
    shutil.copytree(straight, run_dir)
    shutil.rmtree(run_dir / "report")
    assert train_tiny(f"run_dir={run_dir}", "resume=auto") == 0
    results = [json.loads((path / "report" / "result.json").read_text()) for path in (straight, run_dir)]
    assert results[0]["top1"] == results[1]["top1"]
    assert (run_dir / "report" / "report.html").is_file()


def test_a_folder_in_use_is_refused(train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    program = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program, str(run_dir / ".lock")], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        assert train_tiny(f"run_dir={run_dir}") == 2
    finally:
        other.kill()
        other.wait()
    assert "in use by another process" in capsys.readouterr().err


def test_a_broken_last_checkpoint_falls_back_to_the_one_before(
    straight: Path,
    train_tiny: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_straight(straight, train_tiny)
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6, signal.SIGTERM)
        assert train_tiny(f"run_dir={run_dir}") == 143
    last = run_dir / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    assert train_tiny(f"run_dir={run_dir}", "resume=auto") == 0
    assert "last.ckpt cannot be read" in capsys.readouterr().out
    assert rows(run_dir) == rows(straight)
    assert_same_weights(weights(run_dir), weights(straight))


@pytest.mark.parametrize(
    ("override", "fragments"),
    [
        ("model.name=resnet10t", ["model.name was test_resnet", "is now resnet10t", "fix: model.name=test_resnet"]),
        ("data.flip=none", ["data.flip was", "is now none", "resume_force=true"]),
        ("stages.0.batch_size=32", ["stage table", "[32, 16, 4]"]),
    ],
)
def test_another_run_is_refused(
    straight: Path, train_tiny: Train, override: str, fragments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    train_straight(straight, train_tiny)
    before = {path: path.read_bytes() for path in straight.rglob("*") if path.is_file() and path.suffix != ".log"}
    assert train_tiny(f"run_dir={straight}", "resume=auto", override) == 2
    error = capsys.readouterr().err
    assert all(fragment in error for fragment in fragments), error
    assert train_tiny(f"run_dir={straight}", "resume=auto", override, "dry_run=true") == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_is_not_overwritten(straight: Path, train_tiny: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train_straight(straight, train_tiny)
    before = (straight / "metrics.csv").read_bytes()
    assert train_tiny(f"run_dir={straight}") == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (straight / "metrics.csv").read_bytes() == before


def test_a_checkpoint_of_elsewhere_does_not_overwrite_a_run(
    straight: Path, train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_straight(straight, train_tiny)
    run_dir = tmp_path / "run"
    shutil.copytree(straight, run_dir)
    assert train_tiny(f"run_dir={run_dir}", f"resume={straight / 'checkpoints' / 'previous.ckpt'}") == 2
    assert "already holds a run" in capsys.readouterr().err
    own = run_dir / "checkpoints" / "previous.ckpt"
    assert train_tiny(f"run_dir={run_dir}", f"resume={own}") == 0


def test_what_is_no_checkpoint_is_refused(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    torch.save({"fasttrain": {}}, tmp_path / "bare.ckpt")
    (tmp_path / "page.ckpt").write_text("<html>not found</html>")
    (tmp_path / "empty.ckpt").touch()
    for name, words in [
        ("other.ckpt", "not a checkpoint of a fasttrain run"),
        ("bare.ckpt", "not a checkpoint of a fasttrain run"),
        ("page.ckpt", "cut short, or no file that torch.save wrote"),
        ("empty.ckpt", "it is empty"),
        ("absent.ckpt", "no such file"),
    ]:
        assert train_tiny(f"run_dir={tmp_path / name.split('.')[0]}", f"resume={tmp_path / name}") == 2
        assert words in capsys.readouterr().err


def test_a_checkpoint_opens_in_plain_timm(straight: Path, train_tiny: Train) -> None:
    import timm

    train_straight(straight, train_tiny)
    path = straight / "checkpoints" / "best.ckpt"
    network = timm.create_model("test_resnet", num_classes=16, checkpoint_path=str(path))
    assert_same_weights(network.state_dict(), weights(straight, "best"))
