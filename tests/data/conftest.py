"""Fixtures of the data path's tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.samples import CLASSES, make_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 training and 11 validation images in three classes, read only."""
    counts = {"train": dict(zip(CLASSES, (10, 9, 7), strict=True)), "val": dict(zip(CLASSES, (4, 4, 3), strict=True))}
    return make_folder(tmp_path_factory.mktemp("set"), counts)


@pytest.fixture
def fail_when_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes listing one folder fail as it does for somebody who may not read it (root may read all)."""

    def forbid(path: str) -> None:
        def guard(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(name: Any = ".") -> Any:
                if str(name) == path:
                    raise PermissionError(13, "Permission denied", path)
                return function(name)

            return call

        monkeypatch.setattr(os, "listdir", guard(os.listdir))
        monkeypatch.setattr(os, "scandir", guard(os.scandir))

    return forbid
