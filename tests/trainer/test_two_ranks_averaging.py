"""Averaged weights and BatchNorm's statistics on two ranks over gloo, with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

# Each rank leaves the networks that it has validated.
HOOK = """
import os
if os.environ.get('RANK'):
    import torch
    import fasttrain.trainer.module as module
    original = module.ClassifierModule.on_validation_epoch_end
    def end(self):
        original(self)
        states = [{k: v.clone() for k, v in network.state_dict().items()} for network in self.networks]
        torch.save(states, os.path.join(os.environ['LEFT_IN'], f"rank{os.environ['RANK']}.pt"))
    module.ClassifierModule.on_validation_epoch_end = end
"""

RECALIBRATE = """
import sys, torch
from torch import nn
from fasttrain.model.recalibrate import recalibrate
rank = int(sys.argv[1])
torch.distributed.init_process_group('gloo', init_method=f'file://{sys.argv[2]}', rank=rank, world_size=2)
network = nn.Sequential(nn.BatchNorm2d(1))
batches = [[[1., 3.], [10., 30.]], [[5., 7.], [2., 2.]]][rank]
recalibrate([network], [torch.tensor(values)[:, None, None, None] for values in batches], world_size=2)
print(float(network[0].running_mean), float(network[0].running_var))
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    "recalibrated",
    [pytest.param(0, id="shared"), pytest.param(32, id="recalibrated", marks=pytest.mark.slow)],
)
def test_ranks_validate_the_same_networks(tiny_overrides: list[str], tmp_path: Path, recalibrated: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    run_dir = tmp_path / "run"
    overrides = [
        *tiny_overrides,
        "trainer.devices=2",
        "trainer.averaging.kind=ema",
        "trainer.averaging.half_life_images=32",
        "trainer.mixup.alpha=0.2",
        "model.batchnorm.sync=true",
        f"model.batchnorm.recalibrate_images={recalibrated}",
        f"run_dir={run_dir}",
    ]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}", "LEFT_IN": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *overrides],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("model.batchnorm.sync=true: torch has none on a CPU") == 1
    left = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    saved = torch.load(run_dir / "checkpoints" / "last.ckpt")
    for kind, one, other in zip(("state_dict", "state_dict_ema"), *left, strict=True):
        assert [key for key in one if not torch.equal(one[key], other[key])] == []
        assert [key for key in one if not torch.equal(one[key], saved[kind][key])] == []
    raw, averaged = left[0]
    assert any(not torch.equal(raw[key], averaged[key]) for key in raw if key.endswith("running_mean"))
    assert json.loads((run_dir / "report" / "result.json").read_text())["weights"] == "averaged"


def test_recalibrated_statistics_are_the_mean_over_ranks(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RECALIBRATE, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    for process in ranks:
        output, _ = process.communicate(timeout=120)
        # Means 2, 20 and 6, 2; unbiased variances 2, 200 and 2, 0.
        assert [float(value) for value in output.split()] == pytest.approx([7.5, 51])
