"""Compiled code that outlives a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.trainer import compiled
from fasttrain.trainer.compiled import source_hash
from fasttrain.trainer.objective import Objective

Train = Callable[..., int]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    compiled._kept = None
    yield
    compiled._kept = None


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[Objective]:
    """Objectives handed to torch's compiler, which leaves them as they are."""
    handed: list[Objective] = []
    monkeypatch.setattr(Objective, "compile", lambda self, **kwargs: handed.append(self))
    return handed


def weights(run_dir: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run_dir / "checkpoints" / "last.ckpt")["state_dict"]
    return state


def test_a_job_through_kept_code_equals_the_job_alone(
    train_tiny: Train, tmp_path: Path, uncompiled: list[Objective]
) -> None:
    job = ["trainer.compile=true", "optimizer=hybrid", "model.args={drop_rate: 0.2}"]
    assert train_tiny(*job, "seed=1", f"run_dir={tmp_path / 'first'}") == 0
    assert train_tiny(*job, "seed=2", f"run_dir={tmp_path / 'second'}") == 0
    assert len(uncompiled) == 1
    compiled._kept = None
    assert train_tiny(*job, "seed=2", f"run_dir={tmp_path / 'alone'}") == 0
    assert len(uncompiled) == 2
    second, alone = weights(tmp_path / "second"), weights(tmp_path / "alone")
    assert second.keys() == alone.keys()
    for key, value in second.items():
        assert torch.equal(value, alone[key]), key


def test_another_network_is_compiled_anew(train_tiny: Train, tmp_path: Path, uncompiled: list[Objective]) -> None:
    job = ["trainer.compile=true", "trainer.steps_per_stage=1"]
    assert train_tiny(*job, f"run_dir={tmp_path / 'one'}") == 0
    assert train_tiny(*job, "model.args={drop_rate: 0.5}", f"run_dir={tmp_path / 'other'}") == 0
    assert len(uncompiled) == 2
    assert uncompiled[0] is not uncompiled[1]
    misc = json.loads((tmp_path / "one" / "report" / "dawnbench.json").read_text())["misc"]
    assert misc["compiled_graphs"].startswith("0 in the warm-up (0 found in the compiler's cache), which took ")


def test_the_hash_follows_the_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "notes.txt").write_text("x = 1")
    before = source_hash.__wrapped__(tmp_path)
    (tmp_path / "notes.txt").write_text("x = 2")
    assert source_hash.__wrapped__(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2")
    assert source_hash.__wrapped__(tmp_path) != before


COMPILE_BATCHNORM = """
import torch, torch._dynamo
from fasttrain.model.moments import BatchNormBySums
from fasttrain.trainer.compiled import graphs_from_cache, keep_compiled_code
keep_compiled_code()
layer = torch.nn.BatchNorm2d(4)
compiled = torch.compile(lambda x: BatchNormBySums.apply(x, layer.weight, layer.bias, 1e-5)[0].square().sum())
compiled(torch.randn(2, 4, 8, 8, requires_grad=True)).backward()
print("found:", graphs_from_cache())
"""


@pytest.mark.slow
def test_the_next_process_finds_what_this_one_compiled(tmp_path: Path) -> None:
    def found(**more: str) -> str:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **more}
        command = [sys.executable, "-c", COMPILE_BATCHNORM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert [found(), found(), found(TORCH_COMPILE_CACHE_KEY_TAG="other code")] == ["found: 0", "found: 1", "found: 0"]
