"""One optimizer step: accumulation, clipping, schedules, divergence."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.trainer.meters import MAX_NON_FINITE, AccuracyMeter, LossMeter
from fasttrain.trainer.module import ClassifierModule
from fasttrain.trainer.step import StepRunner

Train = Callable[..., int]


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """All gradients in one row, as each optimizer step of this process meets them."""
    seen: list[torch.Tensor] = []
    original = StepRunner.__init__

    def watch(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        seen.append(torch.cat([parameter.grad.flatten() for parameter in parameters]).clone())

    def init(self: StepRunner, objective: Any, optimizer: torch.optim.Optimizer, **rest: Any) -> None:
        original(self, objective, optimizer, **rest)
        optimizer.register_step_pre_hook(watch)

    monkeypatch.setattr(StepRunner, "__init__", init)
    return seen


def test_accumulated_gradients_equal_those_of_the_whole_batch(
    train_tiny: Train, tmp_path: Path, gradients: list[torch.Tensor]
) -> None:
    # Without BatchNorm, whose statistics are those of a micro-batch, only the order of the sums differs.
    common = ["model.name=test_vit", "model.args={img_size: 32}", "trainer.steps_per_stage=1"]
    common += ["stages=[{epochs: 1, px: 32, min_area: 0.35, batch_size: 16, val_px: 32}]"]
    common += ["schedule.warmup_epochs=0"]
    assert train_tiny(f"run_dir={tmp_path / 'whole'}", *common) == 0
    whole = gradients[-1]
    assert train_tiny(f"run_dir={tmp_path / 'parts'}", "trainer.device_batch_size=4", *common) == 0
    parts = gradients[-1]
    assert (whole - parts).norm() / whole.norm() < 1e-5


def test_gradients_are_clipped_to_the_norm(train_tiny: Train, tmp_path: Path, gradients: list[torch.Tensor]) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "optimizer.clip_norm=0.01", "trainer.steps_per_stage=2") == 0
    assert gradients
    assert max(float(gradient.norm()) for gradient in gradients) <= 0.01 * (1 + 1e-4)


def test_the_optimizer_uses_the_plans_learning_rates(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    original = ClassifierModule.on_train_batch_end

    def hook(self: ClassifierModule, *args: Any) -> None:
        used.append(float(self.trainer.optimizers[0].param_groups[0]["lr"]))
        assert self.step == self.trainer.global_step
        original(self, *args)

    monkeypatch.setattr(ClassifierModule, "on_train_batch_end", hook)
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}") == 0
    plan = json.loads((run_dir / "plan.json").read_text())
    assert used == plan["lr"]
    assert len(used) == plan["total_steps"] == 10
    with (run_dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["4", "8", "10"]
    assert [row["px"] for row in rows] == ["32", "32", "48"]


def test_a_run_that_diverges_ends_with_5(train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = "stages=[{epochs: 2, px: 32, min_area: 0.35, batch_size: 2, val_px: 32}]"
    code = train_tiny(
        f"run_dir={tmp_path / 'run'}", stages, "optimizer=sgd", "optimizer.lr=1e30", "trainer.log_every_steps=2"
    )
    assert code == 5
    error = capsys.readouterr().err
    assert "the loss was not finite" in error
    assert "32 px" in error


def test_a_short_run_that_diverges_ends_with_5_too(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", "optimizer=sgd", "optimizer.lr=1e30") == 5
    assert "weights are no longer finite after epoch 1" in capsys.readouterr().err
    assert not list(run_dir.rglob("*.ckpt"))


@pytest.mark.parametrize("seed", [2**31, 2**32 - 1])
def test_every_seed_of_the_range_trains(train_tiny: Train, tmp_path: Path, seed: int) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'run'}", f"seed={seed}", "trainer.steps_per_stage=1") == 0


def test_loss_meter_counts_what_is_not_finite_in_a_row() -> None:
    meter = LossMeter(torch.device("cpu"))
    for value in [1.0, float("nan"), float("inf"), 2.0, float("nan")]:
        meter.add(torch.tensor(value))
    assert int(meter.non_finite_run) == 1
    assert meter.steps == 5
    assert not torch.isfinite(meter.total)
    meter.start_epoch()
    assert (float(meter.total), meter.steps) == (0.0, 0)
    for _ in range(MAX_NON_FINITE - 2):
        meter.add(torch.tensor(float("nan")))
    meter.check(step=1, lr=0.0, peak_lr=0.3, px=32, scale=None)
    restored = LossMeter(torch.device("cpu"))
    restored.load_state_dict(meter.state_dict())
    restored.add(torch.tensor(float("nan")))
    with pytest.raises(Exception, match="20 steps in a row") as caught:
        restored.check(step=2, lr=0.0, peak_lr=0.3, px=32, scale=65536.0)
    assert "lr 0, 32 px" in str(caught.value)
    assert "half: optimizer.lr=0.15)" in str(caught.value)


def test_accuracy_meter_counts_valid_rows_only() -> None:
    meter = AccuracyMeter(torch.device("cpu"))
    logits = torch.eye(8)[[0, 1, 2, 3]] + torch.linspace(0, 0.1, 8)
    meter.add(logits, torch.tensor([0, 1, 7, 3]), num_valid=3)
    meter.add(logits, torch.tensor([0, 1, 2, 3]), num_valid=0)
    # Third row: its best is class 2, then 7 by the ramp, so top-5 holds it.
    assert meter.counts.tolist() == [2, 3, 3]


@pytest.mark.parametrize(("stop", "epochs"), [("true", 1), ("false", 3)])
def test_the_run_ends_at_the_target_if_asked(train_tiny: Train, tmp_path: Path, stop: str, epochs: int) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", "target.value=0.1", f"target.stop={stop}") == 0
    result = json.loads((run_dir / "report" / "result.json").read_text())
    assert result["reached"] is True
    assert (result["epochs_to_target"], result["epochs"]) == (1, epochs)
