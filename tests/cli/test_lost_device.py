"""A GPU that fails in the middle of a run: its first words, how to go on, and no second job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain import cli
from fasttrain.data.path import ImageDataPath
from fasttrain.trainer.step import StepRunner

Train = Callable[..., int]
FIRST, LATER = "CUDA error: unspecified launch failure", "CUDA error: context is destroyed"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which the process would have ended at once."""
    codes: list[int] = []
    monkeypatch.setattr(cli, "leave_at_once", codes.append)
    return codes


def fail_in_step(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let step ``number`` of a process fail, and closing the data path after it."""
    steps = 0
    run, close = StepRunner.run, ImageDataPath.close

    def failing(self: StepRunner, micro_batches: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == number:
            raise torch.AcceleratorError(f"{FIRST}\nCUDA kernel errors might be asynchronously reported")
        return run(self, micro_batches)

    def closing(self: ImageDataPath) -> None:
        close(self)
        if steps >= number:
            raise torch.AcceleratorError(LATER)

    monkeypatch.setattr(StepRunner, "run", failing)
    monkeypatch.setattr(ImageDataPath, "close", closing)


def test_the_first_failure_is_said_and_how_to_go_on(
    train_tiny: Train, tmp_path: Path, left: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        fail_in_step(patch, 7)
        assert train_tiny(f"run_dir={run_dir}") == 4
    assert left == [4]
    said = capsys.readouterr().err
    assert f"environment error: the GPU gave up: {FIRST}\n" in said
    assert f"run_dir={run_dir} resume=auto" in said
    assert LATER not in said
    assert "internal error" not in said
    assert train_tiny(f"run_dir={run_dir}", "resume=auto") == 0
    assert left == [4]


def test_no_job_of_a_sweep_begins_on_a_lost_device(
    train_tiny: Train,
    tmp_path: Path,
    left: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    fail_in_step(monkeypatch, 20)
    assert train_tiny("-m", "seed=1,2,3") == 4
    assert left == [4]
    captured = capsys.readouterr()
    assert f"job 2 of 3: the GPU gave up: {FIRST}\n" in captured.err
    assert "resume=auto" in captured.err
    assert "then the last job:" in captured.err
    assert "job 3 of 3" not in captured.out


def test_another_failure_stays_what_it_is(
    train_tiny: Train, tmp_path: Path, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: StepRunner, micro_batches: Any) -> torch.Tensor:
        raise RuntimeError("a fault")

    monkeypatch.setattr(StepRunner, "run", failing)
    assert train_tiny(f"run_dir={tmp_path / 'run'}") == 1
    assert left == []
