"""Checkpoints are whole or absent, and what was written before stays."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.trainer import checkpoints
from fasttrain.trainer.checkpoints import replace_by_copy, restore_best


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


def test_a_kill_between_the_renames_costs_no_best_checkpoint(
    train_tiny: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    best = run_dir / "checkpoints" / "best.ckpt"

    def kill(source: Path, target: Path) -> None:
        raise ArithmeticError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "replace_by_copy", kill)
        assert train_tiny(f"run_dir={run_dir}") == 1
    assert not best.exists()
    # The target ends the run before it trains further.
    assert train_tiny(f"run_dir={run_dir}", "resume=auto", "target.value=0.1", "target.stop=true") == 0
    assert torch.load(best)["fasttrain"]["step"] == 4
    assert torch.load(best)["fasttrain"]["best"] is True


@pytest.mark.parametrize(
    ("before", "best", "after"),
    [(None, True, 8), (4, True, 8), (12, True, 12), ("broken", True, 8), (4, False, 4), (None, False, None)],
)
def test_best_is_replaced_where_it_is_missing_or_older(
    tmp_path: Path, before: int | str | None, best: bool, after: int | None
) -> None:
    last, kept = tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    content = {"fasttrain": {"step": 8, "best": best}}
    torch.save(content, last)
    if before == "broken":
        kept.write_bytes(b"half")
    elif before is not None:
        torch.save({"fasttrain": {"step": before}}, kept)
    restore_best(tmp_path, last, content)
    assert (torch.load(kept)["fasttrain"]["step"] if kept.exists() else None) == after
