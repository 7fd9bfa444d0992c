"""Training on GPUs: precisions, compilation, two ranks over NCCL. Run by hand on a machine that has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Train = Callable[..., int]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [["trainer.precision=bf16"], ["trainer.precision=fp16"], ["trainer.precision=bf16", "trainer.compile=true"]],
    ids=["bf16", "fp16", "compiled"],
)
@pytest.mark.parametrize("backend", ["dali", "torchvision"])
def test_a_run_on_a_gpu_validates_every_image(
    train_tiny: Train, tmp_path: Path, settings: list[str], backend: str
) -> None:
    run_dir = tmp_path / "run"
    common = ["trainer.accelerator=gpu", "deterministic=false", f"data.backend={backend}", f"run_dir={run_dir}"]
    assert train_tiny(*settings, *common) == 0
    result = json.loads((run_dir / "report" / "result.json").read_text())
    assert result["num_val"] == 32
    assert "NVIDIA" in result["hardware"]


@pytest.mark.multi_gpu
def test_two_gpus_validate_every_image_once(tiny_overrides: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    overrides = [*tiny_overrides, "trainer.accelerator=gpu", "trainer.devices=2", "trainer.precision=bf16"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *overrides, "deterministic=false", f"run_dir={run_dir}"],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((run_dir / "report" / "result.json").read_text())
    assert (result["num_val"], result["num_devices"]) == (32, 2)
