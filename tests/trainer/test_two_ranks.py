"""Two ranks over gloo, with real processes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(overrides: list[str], *, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *overrides, "trainer.devices=2"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )


def test_two_ranks_train_as_one_without_batchnorm(tiny_overrides: list[str], tmp_path: Path) -> None:
    """Same batches, same steps, same result up to the order of sums; each image validated once."""
    from fasttrain.cli import main

    overrides = [
        *tiny_overrides,
        "model.name=test_vit",
        "model.args={img_size: 32}",
        "trainer.device_batch_size=4",
    ]
    overrides += ["stages=[{epochs: 2, px: 32, min_area: 0.35, batch_size: 16, val_px: 32}]"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["train", *overrides, f"run_dir={one}"]) == 0
    done = run_ranks([*overrides, f"run_dir={two}"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("epoch 1/2") == 1
    plans = [json.loads((path / "plan.json").read_text()) for path in (one, two)]
    assert plans[0]["lr"] == plans[1]["lr"]
    assert plans[1]["world_size"] == 2
    results = [json.loads((path / "report" / "result.json").read_text()) for path in (one, two)]
    assert [result["num_val"] for result in results] == [32, 32]
    assert results[1]["num_devices"] == 2
    states = [torch.load(path / "checkpoints" / "last.ckpt")["state_dict"] for path in (one, two)]
    for key, value in states[0].items():
        assert torch.allclose(value, states[1][key], rtol=1e-3, atol=1e-5), key
    losses = [
        [float(row["train_loss"]) for row in csv.DictReader((path / "metrics.csv").open())] for path in (one, two)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


# tests/strategy/test_training.py sees the same of the other strategy.
@pytest.mark.slow
def test_a_rank_that_fails_ends_all_with_its_own_words(tiny_overrides: list[str], tmp_path: Path) -> None:
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import fasttrain.trainer.module as module\n"
        "    from fasttrain.errors import TrainingError\n"
        "    original = module.ClassifierModule.training_step\n"
        "    def step(self, *args):\n"
        "        if self.step == 3:\n"
        "            raise TrainingError('rank one has had enough')\n"
        "        return original(self, *args)\n"
        "    module.ClassifierModule.training_step = step\n"
    )
    started = time.monotonic()
    done = run_ranks([*tiny_overrides, f"run_dir={tmp_path / 'run'}"], environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 5, done.stdout + done.stderr
    assert done.stderr.strip().splitlines()[-1] == "training error: rank one has had enough"
    # Imports take most of it; the ranks end within 30 s of the failure.
    assert time.monotonic() - started < 120


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_ends_the_run_with_one_code(tiny_overrides: list[str], tmp_path: Path, rank: int) -> None:
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import os, signal\n"
        f"if os.environ.get('RANK') == '{rank}':\n"
        "    import fasttrain.trainer.module as module\n"
        "    original = module.ClassifierModule.training_step\n"
        "    def step(self, *args):\n"
        "        if self.step == 6:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return original(self, *args)\n"
        "    module.ClassifierModule.training_step = step\n"
    )
    done = run_ranks([*tiny_overrides, f"run_dir={tmp_path / 'run'}"], environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"rank {rank} was killed (SIGKILL)" in done.stderr
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt")["fasttrain"]["step"] == 4


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_killed_launcher_leaves_no_ranks_and_a_checkpoint(tiny_overrides: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    stages = "stages=[{epochs: 500, px: 32, min_area: 0.35, batch_size: 16, val_px: 32}]"
    launcher = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *tiny_overrides, stages, f"run_dir={run_dir}", "trainer.devices=2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    last = run_dir / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 150
    while not last.exists():
        assert launcher.poll() is None
        assert time.monotonic() < deadline, "no checkpoint in time"
        time.sleep(0.05)
    ranks = [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]
    assert len(ranks) >= 2
    launcher.kill()
    launcher.wait()
    # Each gets SIGTERM from the kernel, saves at the next step that all ranks share, and ends.
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, "ranks outlived their launcher by 30 s"
        time.sleep(0.1)
    assert 0 < torch.load(last)["fasttrain"]["step"] < 2000


@pytest.mark.slow
def test_ranks_that_stand_at_different_steps_are_told_so(tiny_overrides: list[str], tmp_path: Path) -> None:
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import fasttrain.run.found_checkpoint as found_checkpoint\n"
        "    found_checkpoint.find_checkpoint = lambda *args: None\n"
    )
    run_dir = tmp_path / "run"
    one_epoch = ["trainer.steps_per_stage=4"]
    assert run_ranks([*tiny_overrides, *one_epoch, f"run_dir={run_dir}"]).returncode == 0
    (run_dir / "checkpoints" / "last.ckpt").replace(run_dir / "checkpoints" / "end.ckpt")
    (run_dir / "checkpoints" / "previous.ckpt").replace(run_dir / "checkpoints" / "last.ckpt")
    done = run_ranks(
        [*tiny_overrides, *one_epoch, f"run_dir={run_dir}", "resume=auto"],
        environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.returncode == 5, done.stdout + done.stderr
    assert "step to start from: 0 to 4" in done.stderr
