"""What is set before libraries are imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fasttrain.run.environment import prepare_environment


def test_compiled_kernels_have_a_lasting_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    prepare_environment()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "fasttrain" / "inductor")
    assert (tmp_path / "fasttrain" / "inductor").is_dir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    prepare_environment()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


def test_without_a_home_torchs_own_place_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    prepare_environment()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
