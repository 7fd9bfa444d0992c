"""Compiled code that outlives a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.trainer import compiled
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
