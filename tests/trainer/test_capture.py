"""Captured steps, and several steps to one Lightning batch."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.strategy.capture import Part, parts_of_step
from fasttrain.trainer.module import MAX_STEPS_TOGETHER, ClassifierModule
from fasttrain.trainer.step import StepRunner
from fasttrain.trainer.warmup import WarmUp, restore_in_place, steps_together

Train = Callable[..., int]


def test_the_parts_of_a_step() -> None:
    assert parts_of_step(1) == [Part(first=True, last=True)]
    assert parts_of_step(3) == [Part(True, False), Part(False, False), Part(False, True)]


def test_steps_in_one_lightning_batch_last_half_a_second_at_most() -> None:
    assert [steps_together(seconds) for seconds in (0.001, 0.02, 0.1, 3.0)] == [MAX_STEPS_TOGETHER, 25, 5, 1]


@pytest.fixture
def three_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps make up one Lightning batch in every stage."""
    original = WarmUp.on_train_start

    def hook(self: WarmUp, trainer: Any, module: ClassifierModule) -> None:
        original(self, trainer, module)
        module.steps_together = {epoch.stage: 3 for epoch in module.plan.epochs}

    monkeypatch.setattr(WarmUp, "on_train_start", hook)


@pytest.mark.usefixtures("three_together")
def test_steps_together_equal_steps_one_by_one(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    original = ClassifierModule.on_train_batch_end

    def hook(self: ClassifierModule, *arguments: Any) -> None:
        ends.append(self.step)
        assert self.step == self.trainer.global_step
        original(self, *arguments)

    monkeypatch.setattr(ClassifierModule, "on_train_batch_end", hook)
    assert train_tiny(f"run_dir={tmp_path / 'together'}") == 0
    assert ends == [3, 4, 7, 8, 10]
    monkeypatch.undo()
    assert train_tiny(f"run_dir={tmp_path / 'single'}") == 0
    one, other = (torch.load(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("together", "single"))
    for key, value in one["state_dict"].items():
        assert torch.equal(value, other["state_dict"][key]), key


def test_capture_demanded_on_a_cpu_is_refused(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "trainer.capture=true") == 2
    assert "trainer.capture=auto" in capsys.readouterr().err


def test_an_optimizers_tensors_are_restored_where_they_are() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.5), momentum=0.9)
    before = {"state": {}, "param_groups": [dict(optimizer.param_groups[0], lr=0.5)]}
    weight.grad = torch.full((3,), 2.0)
    optimizer.step()
    buffer = optimizer.state[weight]["momentum_buffer"]
    optimizer.param_groups[0]["lr"].fill_(9.0)
    restore_in_place(optimizer, before)
    assert optimizer.state[weight]["momentum_buffer"] is buffer
    assert buffer.tolist() == [0.0, 0.0, 0.0]
    assert float(optimizer.param_groups[0]["lr"]) == 0.5


ON_GPU = ["trainer.accelerator=gpu", "deterministic=true", "data.backend=torchvision"]
OPTIMIZERS = ["sgd", "hybrid", "rectified_lars", "muon_sgd"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        *([f"optimizer={name}", "trainer.precision=bf16"] for name in OPTIMIZERS),
        ["optimizer=torch", "optimizer.lr=1e-3", "trainer.precision=bf16"],
        ["trainer.precision=fp16", "optimizer=sgd"],
        ["trainer.precision=fp16", "optimizer=hybrid", "optimizer.clip_norm=1.0"],
        ["trainer.device_batch_size=4", "trainer.precision=fp32"],
        ["trainer.compile=true", "trainer.precision=bf16"],
        ["model.args={drop_rate: 0.2}", "trainer.precision=bf16"],
        ["optimizer=sgd", "schedule.momentum={high: 0.95, low: 0.85}"],
    ],
    ids=lambda settings: ",".join(setting.split(".")[-1] for setting in settings),
)
def test_captured_steps_equal_uncaptured_ones(
    train_tiny: Train, tmp_path: Path, settings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    losses = {}
    for capture in ("true", "false"):
        run_dir = tmp_path / capture
        with caplog.at_level(logging.INFO, logger="fasttrain"):
            assert train_tiny(*ON_GPU, *settings, f"trainer.capture={capture}", f"run_dir={run_dir}") == 0
        with (run_dir / "metrics.csv").open() as file:
            losses[capture] = [float(row["train_loss"]) for row in csv.DictReader(file)]
    # Ten steps; what differs are atomics in kernels that have no deterministic form.
    assert losses["true"] == pytest.approx(losses["false"], rel=1e-3)


@pytest.mark.gpu
def test_a_step_that_reads_values_back_falls_back(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = StepRunner._update

    def update(self: StepRunner) -> None:
        assert float(self.loss) == float(self.loss)
        original(self)

    monkeypatch.setattr(StepRunner, "_update", update)
    assert train_tiny(*ON_GPU, f"run_dir={tmp_path / 'run'}") == 0
    assert "steps are not captured" in (tmp_path / "run" / "train.log").read_text()
    assert train_tiny(*ON_GPU, "trainer.capture=true", f"run_dir={tmp_path / 'demanded'}") == 4


def test_a_report_says_how_steps_were_run(train_tiny: Train, tmp_path: Path) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "trainer.steps_per_stage=1") == 0
    misc = json.loads((tmp_path / "run" / "report" / "dawnbench.json").read_text())["misc"]
    assert misc["captured_step"] == "no: the step runs on the CPU"
    assert "compiled_graphs" not in misc
