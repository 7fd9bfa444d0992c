"""Warm-up leaves no trace, and a shape that does not fit is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.errors import MachineError
from fasttrain.trainer.warmup import WarmUp, explain_out_of_memory


@pytest.mark.parametrize("optimizer", ["sgd", "hybrid", "torch"])
def test_a_run_with_warmup_equals_one_without(
    train_tiny: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    dropout = "model.args={drop_rate: 0.2}"
    assert train_tiny(f"run_dir={tmp_path / 'with'}", f"optimizer={optimizer}", dropout) == 0
    calls: list[Any] = []
    monkeypatch.setattr(WarmUp, "on_train_start", lambda *args: calls.append(args))
    assert train_tiny(f"run_dir={tmp_path / 'without'}", f"optimizer={optimizer}", dropout) == 0
    assert len(calls) == 1
    one, other = (torch.load(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("with", "without"))
    for part in ("state_dict", "optimizer_states"):
        assert_equal(one[part], other[part])


def test_the_log_says_what_is_warmed_up_and_that_bf16_is_slow_on_a_cpu(
    train_tiny: Callable[..., int], tmp_path: Path
) -> None:
    stages = "stages=[{epochs: 1, px: 32, min_area: 0.35, batch_size: 16, val_px: 32}]"
    assert train_tiny(f"run_dir={tmp_path / 'run'}", stages, "trainer.precision=bf16", "schedule.warmup_epochs=0") == 0
    words = (tmp_path / "run" / "train.log").read_text()
    assert "before the clock starts: 32 px x 16\n" in words
    assert "trainer.precision=fp32\n" in words


def assert_equal(one: Any, other: Any) -> None:
    """Equal to the bit, through dicts and lists."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


def test_a_shape_that_does_not_fit_is_named_with_a_smaller_one() -> None:
    with pytest.raises(MachineError) as caught, explain_out_of_memory("training", 288, 512):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "training at 288 px with 512 images" in str(caught.value)
    assert "trainer.device_batch_size=256" in str(caught.value)
