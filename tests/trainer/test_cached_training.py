"""Runs that train from the image cache: stopped and resumed, warmed up, over two ranks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fasttrain.data import cache_registry
from fasttrain.trainer import warmup
from tests.trainer.test_resume import assert_same_weights, interrupt_at, rows, weights

Train = Callable[..., int]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    cache_registry.take(None)


# The first stage, at 32 px, is served; the last one, at 48 px, decodes from the files.
CACHE = ("data.cache=gpu", "data.cache_px=40")


def test_a_run_that_fills_its_cache_anew_equals_the_straight_run(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, run_dir = tmp_path / "straight", tmp_path / "run"
    assert train_tiny(*CACHE, f"run_dir={straight}") == 0
    told = capsys.readouterr().out
    assert "64 of 64 images in host memory" in told
    assert "data.cache=gpu: there is no GPU, the images are kept in host memory" in told
    cache_registry.take(None)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5, signal.SIGTERM)
        assert train_tiny(*CACHE, f"run_dir={run_dir}") == 143
    cache_registry.take(None)
    assert train_tiny(*CACHE, f"run_dir={run_dir}", "resume=auto") == 0
    assert rows(run_dir) == rows(straight)
    assert_same_weights(weights(run_dir), weights(straight))


def test_warm_up_sees_the_types_of_the_batches(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    original = warmup.random_batch

    def note(*args: object, **settings: object) -> object:
        batch = original(*args, **settings)  # type: ignore[arg-type]
        seen.append((batch.images_nhwc.shape[1], batch.images_nhwc.dtype))
        return batch

    monkeypatch.setattr(warmup, "random_batch", note)
    assert train_tiny(*CACHE, "trainer.precision=bf16", "trainer.steps_per_stage=1", f"run_dir={tmp_path}") == 0
    assert seen == [(32, torch.bfloat16), (48, torch.uint8)]


def test_a_cache_is_saved_by_one_run_and_read_by_the_next(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (*CACHE, f"data.cache_dir={tmp_path / 'cache'}")
    assert train_tiny(*settings, f"run_dir={tmp_path / 'one'}") == 0
    assert len(list((tmp_path / "cache").iterdir())) == 8
    assert "0 of 64 images read" in capsys.readouterr().out
    cache_registry.take(None)
    assert train_tiny(*settings, f"run_dir={tmp_path / 'two'}") == 0
    assert "64 of 64 images read" in capsys.readouterr().out
    assert_same_weights(weights(tmp_path / "two"), weights(tmp_path / "one"))


def test_cache_off_and_another_number_of_shards_are_another_run(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("trainer.steps_per_stage=1", f"run_dir={tmp_path}")
    assert train_tiny(*CACHE, *short) == 0
    capsys.readouterr()
    assert train_tiny("data.num_shards=4", *short, "resume=auto") == 2
    said = capsys.readouterr().err
    assert "data.cache was gpu" in said
    assert "data.num_shards was None" in said or "data.num_shards was null" in said
