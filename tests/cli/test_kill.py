"""A run that was killed outright goes on from its newest checkpoint, and a sweep keeps its jobs apart."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.cli import main

ROOT = Path(__file__).resolve().parents[2]


def accuracy_and_lr(run_dir: Path) -> list[tuple[str, str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [(row["epoch"], row["top1"], row["lr"]) for row in csv.DictReader(file)]


def test_killed_in_the_third_epoch_and_resumed_equals_the_straight_run(
    tiny_overrides: list[str], tmp_path: Path
) -> None:
    stages = "stages=[{epochs: 12, px: 32, min_area: 0.35, batch_size: 16, val_px: 32}]"
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    overrides = [*tiny_overrides, stages, "schedule.warmup_epochs=2"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *overrides, f"run_dir={killed}", "resume=auto"],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 200
    while not (killed / "metrics.csv").exists() or len(accuracy_and_lr(killed)) < 2:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "no second epoch in time"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(accuracy_and_lr(killed)) < 12, "the run was over before the kill"
    assert main(["train", *overrides, f"run_dir={killed}", "resume=auto"]) == 0
    assert main(["train", *overrides, f"run_dir={straight}"]) == 0
    assert accuracy_and_lr(killed) == accuracy_and_lr(straight)
    assert [row[0] for row in accuracy_and_lr(killed)] == [str(epoch) for epoch in range(1, 13)]
    with (killed / "metrics.csv").open(newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    assert seconds == sorted(seconds)


def test_a_sweep_gives_each_job_a_folder_and_its_own_settings(
    train_tiny: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_tiny("-m", "seed=1,2", "trainer.steps_per_stage=1") == 0
    (sweep,) = (tmp_path / "runs").iterdir()
    folders = sorted(sweep.iterdir())
    assert [folder.name for folder in folders] == ["0", "1"]
    results = [json.loads((folder / "report" / "result.json").read_text()) for folder in folders]
    assert [result["seed"] for result in results] == [1, 2]


def test_every_job_of_a_sweep_is_checked_before_the_first_starts(
    train_tiny: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_tiny("-m", "optimizer.lr=0.1,-3") == 2
    assert "optimizer.lr=-3" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_job_two_of_a_sweep_equals_it_alone(
    train_tiny: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    assert train_tiny("-m", "seed=1,2", "trainer.steps_per_stage=2") == 0
    assert train_tiny("seed=2", "trainer.steps_per_stage=2", "run_dir=alone") == 0
    (sweep,) = (path for path in (tmp_path / "runs").iterdir() if path.name.endswith("_sweep"))
    one, other = (
        torch.load(path / "checkpoints" / "last.ckpt")["state_dict"] for path in (sweep / "1", tmp_path / "alone")
    )
    assert all(torch.equal(one[key], other[key]) for key in one)
