"""A saved cache: read by any number of ranks, and used only where it is what is expected."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fasttrain.data import cache_files, cache_registry, rank_cache
from fasttrain.data.cache_files import HEADER_BYTES, Header, fingerprint, open_shard, save_shard
from fasttrain.data.cache_memory import Memory
from fasttrain.data.scan import Split
from fasttrain.errors import MachineError
from tests.data.samples import make_folder
from tests.data.test_cache import assert_equal, epoch_images, start


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    cache_registry.take(None)


def train(root: Path, cache_dir: Path | None, **settings: Any) -> tuple[list[torch.Tensor], int]:
    """Images of three epochs, and how many were decoded; nothing stays in the process."""
    plan, paths, backends = start(root, cache_dir=None if cache_dir is None else str(cache_dir), **settings)
    images = [epoch_images(plan, paths, epoch) for epoch in (0, 1, 2)]
    for path in paths:
        path.close()
    cache_registry.take(None)
    return images, sum(len(backend.decoded) for backend in backends)


def test_saved_and_mapped_equals_fresh_on_any_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    fresh, _ = train(folder, None)
    saving, decoded = train(folder, tmp_path / "cache")
    assert decoded == 32
    assert len(list((tmp_path / "cache").iterdir())) == 8
    assert_equal(saving, fresh)
    for settings in ({}, {"ranks": 4}, {"cache": "host", "ranks": 2}):
        mapped, decoded = train(folder, tmp_path / "cache", **settings)
        assert decoded == 0
        assert_equal(mapped, fresh)


def test_what_another_number_of_ranks_saved_is_read(folder: Path, tmp_path: Path) -> None:
    fresh, _ = train(folder, tmp_path / "cache", ranks=4, cache="host")
    mapped, decoded = train(folder, tmp_path / "cache")
    assert decoded == 0
    assert_equal(mapped, fresh)


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def change_header(**values: Any) -> Any:
    def change(file: Path) -> None:
        content = file.read_bytes()
        header = json.loads(content[:HEADER_BYTES]) | values
        file.write_bytes(json.dumps(header).encode().ljust(HEADER_BYTES) + content[HEADER_BYTES:])

    return change


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (cut_off, "it is cut off"),
        (lambda file: file.write_bytes(b""), "header cannot be read"),
        (lambda file: file.write_bytes(b"<html>" * 1000), "header cannot be read"),
        (change_header(format_version=0), "format has version 0, expected 1"),
        (change_header(fingerprint="0" * 32), "made from other images"),
        (change_header(num_images=3), "num_images is 3, expected 4"),
        (change_header(unknown=1), "header cannot be read"),
    ],
)
def test_a_file_that_is_not_as_expected_is_named_and_made_anew(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any, why: str
) -> None:
    fresh, _ = train(folder, tmp_path)
    file = tmp_path / "shard_1_of_8_40px.squares"
    whole = file.read_bytes()
    spoil(file)
    with caplog.at_level(logging.WARNING, "fasttrain"):
        again, decoded = train(folder, tmp_path)
    assert f"{file}: " in caplog.text
    assert why in caplog.text
    assert_equal(again, fresh)
    # Shard 1 has images 1, 9, 17 and 25, one in each batch.
    assert decoded == 4
    assert file.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 8


def test_images_that_have_changed_make_a_new_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = make_folder(tmp_path / "set", {split: {"a": 7, "b": 7} for split in ("train", "val")})
    train(root, tmp_path / "cache")
    os.utime(root / "train" / "a" / "003.JPEG", (1, 1))
    with caplog.at_level(logging.WARNING, "fasttrain"):
        _, decoded = train(root, tmp_path / "cache")
    assert decoded == 16
    assert "made from other images, or from files that have changed since" in caplog.text


def test_fingerprint_is_of_names_below_the_root_classes_sizes_and_times(tmp_path: Path) -> None:
    def found(name: str, content: bytes = b"one", label: int = 0, time: int = 5) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (time, time))
        return fingerprint(str(path.parents[1]), Split([str(path)], np.array([label])))

    same = found("here/train/a.jpg")
    assert found("there/train/a.jpg") == same
    others = [
        found("here/train/b.jpg"),
        found("here/train/a.jpg", content=b"longer"),
        found("here/train/a.jpg", label=1),
        found("here/train/a.jpg", time=6),
    ]
    assert len({same, *others}) == 5


def test_header_of_a_saved_shard_and_its_layout(tmp_path: Path) -> None:
    header = Header(1, "f" * 32, 8, 0, 2, 5)
    sizes = np.arange(10, dtype=np.int32).reshape(5, 2)
    squares = torch.randint(256, (10, 8, 8, 3), dtype=torch.uint8)
    file = save_shard(tmp_path / "new", header, sizes, squares[::2])
    assert file.stat().st_size == header.file_bytes == 4096 + 5 * (8 + 192)
    saved = open_shard(tmp_path / "new", header)
    assert saved is not None
    assert (saved.sizes == sizes).all()
    assert (saved.squares == squares[::2].numpy()).all()
    assert open_shard(tmp_path, header) is None


def test_a_save_that_fails_leaves_neither_file_nor_rest_and_training_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    fresh, _ = train(folder, None)
    monkeypatch.setattr(cache_files.os, "fsync", full)
    with caplog.at_level(logging.WARNING, "fasttrain"):
        images, _ = train(folder, tmp_path)
    assert_equal(images, fresh)
    assert f"data.cache_dir={tmp_path} cannot be written: No space left on device" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(MachineError, match=r"is a file, expected a folder"):
        start(folder, cache_dir=str(tmp_path / "cache"))


def test_a_saved_cache_larger_than_memory_is_read_as_far_as_it_fits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fresh, _ = train(folder, tmp_path)
    small = Memory("memory", 11 * 40**2 * 3, 0, 0.1)
    for name in ("device_memory", "host_memory"):
        monkeypatch.setattr(rank_cache, name, lambda *_: small)
    images, decoded = train(folder, tmp_path)
    assert_equal(images, fresh)
    # Each epoch has its 26 images and 6 to fill the last batch; 15 images do not fit.
    assert 3 * 15 <= decoded <= 3 * (15 + 6)
    with caplog.at_level(logging.INFO, "fasttrain"):
        train(folder, tmp_path / "new")
    assert "not all images fit, so that data.cache_dir gets no new files" in caplog.text
    assert not (tmp_path / "new").exists()
