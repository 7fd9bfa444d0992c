"""CIFAR-10's binary layout."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fasttrain.data.scan import scan
from fasttrain.errors import DataError
from tests.data.samples import make_config, write_cifar10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cifar10(tmp_path / "cifar-10-batches-bin")


def message(root: Path) -> str:
    with pytest.raises(DataError) as raised:
        scan(make_config(kind="cifar10", root=str(root)))
    return " ".join(str(raised.value).split())


def test_records_become_pixels_and_classes(root: Path) -> None:
    found = scan(make_config(kind="cifar10", root=str(root)))
    assert (found.num_train, found.num_val, found.num_classes) == (100, 20, 10)
    assert found.train.images is not None
    assert found.train.images.shape == (100, 32, 32, 3)
    record = np.frombuffer((root / "data_batch_2.bin").read_bytes(), dtype=np.uint8)[3073 * 3 : 3073 * 4]
    assert found.train.labels[23] == record[0] == 3
    red, green, blue = record[1:].reshape(3, 32, 32)
    assert (found.train.images[23] == np.stack([red, green, blue], axis=-1)).all()


def test_names_come_from_the_meta_file(root: Path) -> None:
    names = ["plane", *(f"c{i}" for i in range(9))]
    (root / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    assert scan(make_config(kind="cifar10", root=str(root))).classes == tuple(names)


def test_another_number_of_names(root: Path) -> None:
    (root / "batches.meta.txt").write_text("plane\ncar\n")
    assert "batches.meta.txt has 2 names of classes, expected 10" in message(root)


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin", "batches.meta.txt"])
def test_a_file_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (root / "batches.meta.txt").write_text("\n".join(f"c{i}" for i in range(10)))
    locked, fromfile, opened = str(root / name), np.fromfile, open

    def refuse(real: Callable[..., Any], path: str, *rest: Any, **named: Any) -> Any:
        if path == locked:  # the superuser may read everything
            raise PermissionError(errno.EACCES, "Permission denied", locked)
        return real(path, *rest, **named)

    monkeypatch.setattr(np, "fromfile", partial(refuse, fromfile))
    monkeypatch.setattr("builtins.open", partial(refuse, opened))
    assert f"{locked} cannot be read: Permission denied fix: chmod a+r {locked}" in message(root)


def test_part_is_held_out(root: Path) -> None:
    (root / "test_batch.bin").unlink()
    found = scan(make_config(kind="cifar10", root=str(root), holdout_frac=0.2))
    assert np.bincount(found.val.labels).tolist() == [2] * 10
    assert found.train.images is not None
    assert len(found.train.images) == found.num_train == 80


def test_files_cut_off_missing_or_of_another_set(root: Path) -> None:
    (root / "data_batch_3.bin").write_bytes(b"\0" * 5000)
    (root / "test_batch.bin").write_bytes(b"")
    text = message(root)
    assert "data_batch_3.bin has 5000 bytes, not a multiple of 3073" in text
    assert "test_batch.bin has 0 bytes" in text
    (root / "data_batch_3.bin").unlink()
    assert "lacks data_batch_3.bin" in message(root)


def test_class_out_of_range(root: Path) -> None:
    records = np.zeros((4, 3073), dtype=np.uint8)
    records[2, 0] = 10
    (root / "data_batch_1.bin").write_bytes(records.tobytes())
    assert "record 2 has class 10, expected 0 to 9" in message(root)


def test_wrong_level_and_python_version(root: Path, tmp_path: Path) -> None:
    assert f"fix: data.root={root}" in message(root.parent)
    assert "no such folder" in message(tmp_path / "gone")
    python = tmp_path / "python"
    python.mkdir()
    (python / "data_batch_1").write_bytes(b"x")
    assert "binary version" in message(python)
