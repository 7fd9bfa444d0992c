"""Runs with averaged weights: their files, and a resume that loses nothing."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from fasttrain.cli import main
from fasttrain.model.weights import read_state_dict
from fasttrain.report.callback import ReportCallback
from fasttrain.trainer.module import ClassifierModule

ROOT = Path(__file__).resolve().parents[2]
Train = Callable[..., int]
EMA = ["trainer.averaging.kind=ema", "trainer.averaging.half_life_images=32"]


def checkpoint(run_dir: Path, name: str = "last") -> dict[str, Any]:
    return torch.load(run_dir / "checkpoints" / f"{name}.ckpt", weights_only=True)  # type: ignore[no-any-return]


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if not torch.equal(one[key], other[key])]


def columns(run_dir: Path) -> list[tuple[str, ...]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [(row["step"], row["train_loss"], row["top1"], row["top5"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def straight_runs() -> dict[str, Path]:
    """Folders of runs that were never stopped, by their settings."""
    return {}


@pytest.fixture
def straight_run(
    train_tiny: Train, straight_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[str]], Path]:
    """The folder of a run that was never stopped, trained when it is first asked for."""

    def find(settings: list[str]) -> Path:
        key = " ".join(settings)
        if key not in straight_runs:
            run_dir = tmp_path_factory.mktemp("straight") / "run"
            assert train_tiny(f"run_dir={run_dir}", *settings) == 0
            straight_runs[key] = run_dir
        return straight_runs[key]

    return find


def test_both_weights_are_saved_validated_and_shown(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", *EMA) == 0
    shown = capsys.readouterr().out
    assert shown.count("(raw weights: top1 ") == 3
    saved, best = checkpoint(run_dir), run_dir / "checkpoints" / "best.ckpt"
    assert differing(saved["state_dict"], saved["state_dict_ema"])
    result = json.loads((run_dir / "report" / "result.json").read_text())
    assert result["weights"] == "averaged"
    out = tmp_path / "eval.json"
    assert main(["eval", str(run_dir / "checkpoints" / "last.ckpt"), "--json", str(out)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "N=32" in line]
    assert ["averaged weights" in line for line in lines] == [True, False]
    assert "raw weights" in lines[1]
    figures = json.loads(out.read_text())
    assert figures["weights"] == "averaged"
    assert figures["top1"] == pytest.approx(result["top1"], abs=1e-3)
    for metric in ("raw_top1", "raw_top5"):
        assert figures[metric] == pytest.approx(result[metric], abs=1e-3)
    # The best checkpoint is that of the best accuracy of the averaged weights.
    rows = saved["callbacks"]["ReportCallback"]["rows"]
    top1 = [row["top1"] for row in rows]
    assert checkpoint(run_dir, "best")["fasttrain"]["step"] == rows[top1.index(max(top1))]["step"]
    # timm and a new run take the averaged weights.
    network = timm.create_model("test_resnet", num_classes=16, checkpoint_path=str(best))
    assert differing(network.state_dict(), checkpoint(run_dir, "best")["state_dict_ema"]) == []
    assert differing(read_state_dict(str(best)), checkpoint(run_dir, "best")["state_dict_ema"]) == []


def test_training_is_the_same_with_and_without_an_average(train_tiny: Train, tmp_path: Path) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'plain'}") == 0
    assert train_tiny(f"run_dir={tmp_path / 'averaged'}", *EMA) == 0
    plain, averaged = checkpoint(tmp_path / "plain"), checkpoint(tmp_path / "averaged")
    assert differing(plain["state_dict"], averaged["state_dict"]) == []
    assert "state_dict_ema" not in plain


@pytest.mark.parametrize(
    "step", [2, pytest.param(4, marks=pytest.mark.slow), 5, pytest.param(8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "settings",
    [
        [*EMA, "model.batchnorm.recalibrate_images=32"],
        ["trainer.averaging.kind=swa", "trainer.averaging.from_epoch=1.25", "trainer.averaging.every_steps=2"],
    ],
    ids=["ema", "swa"],
)
def test_a_resumed_average_is_the_straight_ones_to_the_bit(
    train_tiny: Train,
    straight_run: Callable[[list[str]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: list[str],
    step: int,
) -> None:
    straight, run_dir = straight_run(settings), tmp_path / "run"
    original = ClassifierModule.on_train_batch_end

    def hook(self: ClassifierModule, *args: Any) -> None:
        original(self, *args)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ClassifierModule, "on_train_batch_end", hook)
        assert train_tiny(f"run_dir={run_dir}", *settings) == 143
    assert train_tiny(f"run_dir={run_dir}", *settings, "resume=auto") == 0
    for name in ("last", "best"):
        one, other = checkpoint(straight, name), checkpoint(run_dir, name)
        assert one["fasttrain"]["step"] == other["fasttrain"]["step"]
        for part in ("state_dict", "state_dict_ema"):
            assert differing(one[part], other[part]) == []
    assert columns(straight) == columns(run_dir)
    scores = [checkpoint(path)["callbacks"]["Checkpoints"]["best_accuracy"] for path in (straight, run_dir)]
    assert scores[0] == scores[1] is not None


def test_a_checkpoint_without_averaged_weights_cannot_go_on_with_them(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", "trainer.steps_per_stage=2") == 0
    previous = run_dir / "checkpoints" / "previous.ckpt"
    again = [f"run_dir={tmp_path / 'again'}", f"resume={previous}", "trainer.steps_per_stage=2", *EMA]
    assert train_tiny(*again) == 2
    error = capsys.readouterr().err
    assert "has no averaged weights" in error
    assert "trainer.averaging.kind=none, or trainer.averaging.from_epoch=0.5 or later" in error


def test_an_average_that_begins_later_is_the_raw_network_until_then(train_tiny: Train, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    late = ["trainer.averaging.kind=swa", "trainer.averaging.from_epoch=2"]
    assert train_tiny(f"run_dir={run_dir}", *late) == 0
    before, after = checkpoint(run_dir, "previous"), checkpoint(run_dir)
    assert differing(before["state_dict"], before["state_dict_ema"]) == []
    assert differing(after["state_dict"], after["state_dict_ema"])
    rows = after["callbacks"]["ReportCallback"]["rows"]
    assert [row["raw_top1"] == row["top1"] for row in rows[:2]] == [True, True]


def test_statistics_are_taken_anew_on_the_clock(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still in validation; what belongs to training comes before."""
    order = []
    recalibrate, start = ClassifierModule.recalibrate, ReportCallback.on_validation_start

    def recalibrating(self: ClassifierModule) -> None:
        order.append("recalibrate")
        recalibrate(self)

    def starting(self: ReportCallback, *args: Any) -> None:
        order.append("clock stops")
        start(self, *args)

    monkeypatch.setattr(ClassifierModule, "recalibrate", recalibrating)
    monkeypatch.setattr(ReportCallback, "on_validation_start", starting)
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "model.batchnorm.recalibrate_images=20") == 0
    assert order == ["recalibrate", "clock stops"] * 3


def test_recalibrated_statistics_are_those_of_the_epochs_first_images(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer sees pixels only, so its mean is the mean of what it makes of them."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = ClassifierModule.recalibrate

    def recalibrating(self: ClassifierModule) -> None:
        original(self)
        first = next(module for module in self.network.modules() if isinstance(module, nn.Conv2d))
        norm = next(module for module in self.network.modules() if isinstance(module, nn.BatchNorm2d))
        # 20 images are two steps of 16.
        steps = list(self.data_path.train_epoch(self.epoch_plan))[: math.ceil(20 / self.epoch_plan.batch_size)]
        means = [first(self.objective.normalize(batch.images_nhwc)).mean((0, 2, 3)) for step in steps for batch in step]
        seen.append((norm.running_mean.clone(), torch.stack(means).mean(0)))

    monkeypatch.setattr(ClassifierModule, "recalibrate", recalibrating)
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "model.batchnorm.recalibrate_images=20") == 0
    assert len(seen) == 3
    for found, expected in seen:
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.gpu
def test_everything_at_once_on_a_gpu(train_tiny: Train, tmp_path: Path) -> None:
    options = ["model.batchnorm.ghost_size=8", "model.batchnorm.frozen_scale=0.5", "model.batchnorm.bias_lr_scale=4"]
    options += [
        "model.batchnorm.recalibrate_images=32",
        "trainer.mixup.alpha=0.2",
        "trainer.mixup.cutmix_alpha=1",
        *EMA,
    ]
    gpu = ["trainer.accelerator=gpu", "trainer.precision=bf16", "deterministic=false"]
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", *options, *gpu) == 0
    saved = checkpoint(run_dir)
    assert differing(saved["state_dict"], saved["state_dict_ema"])
    assert all(bool(torch.isfinite(value).all()) for value in saved["state_dict_ema"].values())
    result = json.loads((run_dir / "report" / "result.json").read_text())
    assert (result["num_val"], result["weights"]) == (32, "averaged")


@pytest.mark.multi_gpu
def test_synchronised_statistics_are_one_on_two_gpus(tiny_overrides: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = ["trainer.devices=2", "trainer.accelerator=gpu", "deterministic=false", f"run_dir={run_dir}"]
    command = [sys.executable, str(ROOT / "train.py"), *tiny_overrides, *options, *EMA, "model.batchnorm.sync=true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plain BatchNorm" not in done.stdout
    assert "has its own statistics" not in done.stdout
    assert json.loads((run_dir / "report" / "result.json").read_text())["num_val"] == 32


def test_all_problems_are_told_at_once(train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["trainer.mixup.alpha=-1", "trainer.averaging.kind=mean"]
    assert train_tiny(f"run_dir={tmp_path / 'run'}", *wrong) == 2
    error = capsys.readouterr().err
    assert "trainer.mixup.alpha=-1: expected" in error
    assert "trainer.averaging.kind=mean: expected" in error
    wrong = ["trainer.averaging.kind=swa", "trainer.averaging.from_epoch=3", "model.batchnorm.ghost_size=5"]
    assert train_tiny(f"run_dir={tmp_path / 'run'}", *wrong) == 2
    error = capsys.readouterr().err
    assert "trainer.averaging.from_epoch=3: the average would begin after the run's 3 epochs" in error
    assert "model.batchnorm.ghost_size=5: does not divide" in error
