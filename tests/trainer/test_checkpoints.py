"""Checkpoints are whole or absent, and what was written before stays."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.trainer.checkpoints import replace_by_copy


def test_a_full_disk_ends_the_run_and_leaves_the_files_before(
    train_tiny: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = tmp_path / "run"
    original = torch.save
    written: list[bytes] = []

    def save(content: Any, path: Path) -> None:
        if written:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(content, path)
        written.append(path.read_bytes())

    monkeypatch.setattr(torch, "save", save)
    assert train_tiny(f"run_dir={run_dir}") == 4
    assert "No space left on device" in capsys.readouterr().err
    assert (run_dir / "checkpoints" / "last.ckpt").read_bytes() == written[0]
    assert not (run_dir / "checkpoints" / "last.ckpt.unfinished").exists()
    assert torch.load(run_dir / "checkpoints" / "best.ckpt")["fasttrain"]["step"] == 4


def test_last_previous_and_best_follow_each_other(train_tiny: Callable[..., int], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}") == 0
    folder = run_dir / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["best.ckpt", "last.ckpt", "previous.ckpt"]
    steps = {path.stem: torch.load(path)["fasttrain"]["step"] for path in folder.iterdir()}
    assert steps["last"] == 10
    assert steps["previous"] == 8
    header = torch.load(folder / "last.ckpt")["fasttrain"]
    assert header["preprocessing"]["mean"] == [0.485, 0.456, 0.406]
    assert "recipe: quickstart" in header["config"]
    assert len(header["classes"]) == 16


def test_a_copy_replaces_what_is_there(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("new")
    target.write_text("old")
    (tmp_path / "b.unfinished").write_text("left by a kill")
    replace_by_copy(source, target)
    assert target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
