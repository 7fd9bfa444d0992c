"""A run with ``data.on_bad_file=skip``: what it writes about the files that it left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import NUM_TRAIN, NUM_VAL


def test_left_out_files_are_counted_listed_and_kept_out_over_a_resume(
    tiny_images: Path,
    train_tiny: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, run_dir = Path(shutil.copytree(tiny_images, tmp_path / "set")), tmp_path / "run"
    bad = [sorted((root / split).rglob("*.jpg"))[3] for split in ("train", "val")]
    good = [path.read_bytes() for path in bad]
    for path in bad:
        path.write_bytes(b"<html>")
    settings = ["data.on_bad_file=skip", f"data.root={root}", f"run_dir={run_dir}"]
    assert train_tiny(*settings, "data.on_bad_file=fail") == 3
    assert "data.on_bad_file=skip" in capsys.readouterr().err
    shutil.rmtree(run_dir)
    assert train_tiny(*settings) == 0
    assert f"2 of {NUM_TRAIN + NUM_VAL} files cannot be decoded and are left out" in capsys.readouterr().out
    plan, result = (json.loads((run_dir / name).read_text()) for name in ("plan.json", "report/result.json"))
    assert (plan["num_train"], plan["num_val"]) == (NUM_TRAIN - 1, NUM_VAL - 1)
    assert (result["skipped_files"], result["num_val"]) == (2, NUM_VAL - 1)
    rows = (run_dir / "skipped_files.tsv").read_text().splitlines()
    assert rows == ["path\treason", *(f"{path}\tnot an image, it starts with b'<html>'" for path in bad)]
    page = (run_dir / "report" / "report.html").read_text()
    assert all(str(path) in page for path in bad)
    bad[0].write_bytes(good[0])
    assert train_tiny(*settings, "resume=auto") == 3
    error = capsys.readouterr().err
    assert "2 files could not be decoded and were left out when" in error
    assert "now 1; they differ in train/" in error
