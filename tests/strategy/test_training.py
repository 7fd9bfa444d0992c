"""``train.py strategy=accelerated_ddp`` on two CPU ranks."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def train(overrides: list[str], run_dir: Path, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, [path or ROOT, ROOT]))}
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *overrides, f"run_dir={run_dir}", "trainer.devices=2"],
        capture_output=True,
        text=True,
        timeout=250,
        env=variables,
    )


def checkpoint(run_dir: Path) -> dict[str, Any]:
    return torch.load(run_dir / "checkpoints" / "last.ckpt")  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_run_that_was_tuned_equals_a_stock_one_and_keeps_its_plan(tiny_overrides: list[str], tmp_path: Path) -> None:
    # 264 steps: twice the budget of a tuning, and eight more.
    stages = "stages=[{epochs: 33, px: 32, min_area: 0.35, batch_size: 8, val_px: 32}]"
    overrides = [*tiny_overrides, stages, "deterministic=false"]
    for name, strategy in (("stock", "ddp"), ("tuned", "accelerated_ddp")):
        done = train([*overrides, f"strategy={strategy}"], tmp_path / name)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "tuning in the first steps" in done.stdout + done.stderr
    stock, tuned = checkpoint(tmp_path / "stock"), checkpoint(tmp_path / "tuned")
    for key, value in stock["state_dict"].items():
        assert torch.equal(value, tuned["state_dict"][key]), key
    kept = tuned["fasttrain_accelerated_ddp"]
    assert kept["fingerprint"]["world_size"] == 2
    assert set(kept["plan"]) >= {"bucket_mb", "streams"}
    rows = [
        [row["top1"] for row in csv.DictReader((tmp_path / name / "metrics.csv").open())] for name in ("stock", "tuned")
    ]
    assert rows[0] == rows[1]


def test_a_rank_that_raises_ends_all_with_its_own_words(tiny_overrides: list[str], tmp_path: Path) -> None:
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import time\n"
        "    import fasttrain.trainer.module as module\n"
        "    from fasttrain.errors import TrainingError\n"
        "    original = module.ClassifierModule.training_step\n"
        "    def step(self, *args):\n"
        "        if self.step == 3:\n"
        f"            open({str(tmp_path / 'raised')!r}, 'w').write(str(time.time()))\n"
        "            raise TrainingError('rank one has had enough')\n"
        "        return original(self, *args)\n"
        "    module.ClassifierModule.training_step = step\n"
    )
    fixed = ["strategy=accelerated_ddp", "strategy.streams=4", "strategy.autotune=false", "deterministic=false"]
    done = train([*tiny_overrides, *fixed], tmp_path / "run", path=tmp_path)
    assert time.time() - float((tmp_path / "raised").read_text()) < 30
    assert done.returncode == 5, done.stdout + done.stderr
    assert done.stderr.strip().splitlines()[-1] == "training error: rank one has had enough"
    assert "DDP's own buckets, 4 streams (autotune is off; 2 ranks on 1 node)" in done.stdout + done.stderr


@pytest.mark.multi_gpu
def test_captured_steps_on_two_gpus_equal_stock_ddps(tiny_overrides: list[str], tmp_path: Path) -> None:
    common = ["trainer.accelerator=gpu", "trainer.capture=true", "deterministic=false", "trainer.precision=fp32"]
    # No convolution of a ViT picks its kernel by time, so that two runs may be compared to a rounding.
    vit = ["model.name=test_vit", "model.args={img_size: 32, dynamic_img_size: true}"]
    for name, strategy in (("stock", "ddp"), ("tuned", "accelerated_ddp")):
        done = train([*tiny_overrides, *common, *vit, f"strategy={strategy}"], tmp_path / name)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "captured steps" in done.stdout + done.stderr
    stock, tuned = checkpoint(tmp_path / "stock"), checkpoint(tmp_path / "tuned")
    for key, value in stock["state_dict"].items():
        assert torch.allclose(value, tuned["state_dict"][key], rtol=1e-4, atol=1e-6), key
    assert tuned["fasttrain_accelerated_ddp"]["fingerprint"]["backend"] == "nccl"
