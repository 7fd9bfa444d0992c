"""A saved cache: read by any number of ranks, and used only where it is what is expected."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fasttrain.data import cache_files, cache_registry, rank_cache
from fasttrain.data.cache_files import HEADER_BYTES, Header, fingerprint, save_shard
from fasttrain.data.cache_memory import Memory
from fasttrain.data.cache_reading import find_shard
from fasttrain.data.scan import Split
from fasttrain.errors import DataError
from tests.data.samples import make_folder
from tests.data.test_cache import CountingBackend, assert_equal, epoch_images, start


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


def change_bytes(start: int, values: bytes) -> Any:
    def change(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.seek(start, os.SEEK_SET if start >= 0 else os.SEEK_END)
            opened.write(values)

    return change


def saved_with_height(height: int) -> Any:
    """As a faulty writer would save it, with a checksum that fits."""

    def change(file: Path) -> None:
        content = file.read_bytes()
        header = Header(**json.loads(content[:HEADER_BYTES]))
        sizes = np.frombuffer(content, np.int32, 2 * header.num_images, HEADER_BYTES).reshape(-1, 2).copy()
        sizes[2, 0] = height
        squares = np.frombuffer(content[header.squares_at : header.checksums_at], np.uint8)
        save_shard(file.parent, header, sizes, torch.from_numpy(squares.copy()).view(-1, 40, 40, 3))

    return change


def shard_file(folder: Path, shard: int) -> Path:
    (file,) = folder.glob(f"*_torchvision_40px_shard_{shard}_of_8.squares")
    return file


NOT_SAVED = "4 images are damaged: they are not what was saved"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (cut_off, "it is cut off"),
        (lambda file: file.write_bytes(b""), "header cannot be read"),
        (lambda file: file.write_bytes(b"<html>" * 1000), "header cannot be read"),
        (lambda file: file.write_bytes(b"[" * 5000), "header cannot be read"),
        (change_header(format_version=0), "format has version 0, expected 2"),
        (change_header(fingerprint="0" * 32), "made from other images"),
        (change_header(decoder="dali"), "decoder is dali, expected torchvision"),
        (change_header(num_images=3), "num_images is 3, expected 4"),
        (change_header(unknown=1), "header cannot be read"),
        (change_bytes(HEADER_BYTES + 4 * 8, bytes(4 * 40 * 40 * 3)), NOT_SAVED),
        (change_bytes(HEADER_BYTES + 8, (2**31 - 1).to_bytes(4, "little")), NOT_SAVED),
        (change_bytes(-4, b"\0\0\0\0"), NOT_SAVED),
        (saved_with_height(0), "heights and widths are not all from 1"),
        (saved_with_height(-1), "heights and widths are not all from 1"),
        (saved_with_height(2**31 - 1), "heights and widths are not all from 1"),
    ],
)
def test_a_file_that_is_not_as_expected_is_named_and_made_anew(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any, why: str
) -> None:
    fresh, _ = train(folder, tmp_path)
    file = shard_file(tmp_path, 1)
    whole = file.read_bytes()
    spoil(file)
    assert file.read_bytes() != whole
    with caplog.at_level(logging.WARNING, "fasttrain"):
        again, decoded = train(folder, tmp_path)
    assert f"{file}: " in caplog.text
    assert why in caplog.text
    assert_equal(again, fresh)
    # Shard 1 has images 1, 9, 17 and 25, one in each batch.
    assert decoded == 4
    assert file.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 8


def test_only_the_parts_of_a_file_that_are_damaged_are_decoded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_files, "CHUNK_BYTES", 2 * 40 * 40 * 3)
    fresh, _ = train(folder, tmp_path)
    file = shard_file(tmp_path, 1)
    whole = file.read_bytes()
    assert len(whole) == HEADER_BYTES + 4 * (8 + 40 * 40 * 3) + 2 * 4
    # A pixel of the third image: parts have two.
    place = HEADER_BYTES + 4 * 8 + 2 * 40 * 40 * 3 + 7
    change_bytes(place, bytes([whole[place] ^ 1]))(file)
    with caplog.at_level(logging.WARNING, "fasttrain"):
        again, decoded = train(folder, tmp_path)
    assert "2 images are damaged" in caplog.text
    assert_equal(again, fresh)
    assert decoded == 2
    assert file.read_bytes() == whole


def test_images_that_have_changed_make_a_new_cache(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", {split: {"a": 7, "b": 7} for split in ("train", "val")})
    train(root, tmp_path / "cache")
    os.utime(root / "train" / "a" / "003.JPEG", (1, 1))
    _, decoded = train(root, tmp_path / "cache")
    assert decoded == 16


def test_sets_and_decoders_in_one_folder_keep_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [make_folder(tmp_path / name, {split: {"a": 8, "b": 8} for split in ("train", "val")}) for name in "xy"]
    for root in sets:
        train(root, tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 16
    monkeypatch.setattr(CountingBackend, "name", "dali")
    assert train(sets[0], tmp_path / "cache")[1] == 16
    assert len(list((tmp_path / "cache").iterdir())) == 24
    assert [train(root, tmp_path / "cache")[1] for root in sets] == [0, 16]


def test_a_kept_cache_is_not_used_once_a_file_has_changed(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", {split: {"a": 8, "b": 8} for split in ("train", "val")})
    for changed_s, cache_dir in ((1, None), (2, str(tmp_path / "cache"))):
        plan, paths, _ = start(root, cache_dir=cache_dir)
        for epoch in (0, 1):
            epoch_images(plan, paths, epoch)
        paths[0].close()
        os.utime(root / "train" / "a" / "003.JPEG", (changed_s, changed_s))
        plan, paths, (backend,) = start(root, cache_dir=cache_dir)
        epoch_images(plan, paths, 0)
        assert len(backend.decoded) == 16
        paths[0].close()
        cache_registry.take(None)


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
    header = Header(2, "f" * 32, "dali", 8, 0, 2, 5)
    sizes = np.arange(1, 11, dtype=np.int32).reshape(5, 2)
    squares = torch.randint(256, (10, 8, 8, 3), dtype=torch.uint8)
    file = save_shard(tmp_path / "new", header, sizes, squares[::2])
    assert file.name == "ffffffffffff_dali_8px_shard_0_of_2.squares"
    assert file.stat().st_size == header.file_bytes == 4096 + 5 * (8 + 192) + 4
    expected = zlib.crc32(sizes.astype("<i4").tobytes() + squares[::2].numpy().tobytes())
    assert file.read_bytes()[-4:] == expected.to_bytes(4, "little")
    saved = find_shard(tmp_path / "new", header)
    assert saved is not None
    (part,) = saved.parts()
    assert (part.images, part.damage) == (slice(0, 5), "")
    assert (part.sizes == sizes).all()
    assert (part.squares == squares[::2].numpy()).all()
    assert find_shard(tmp_path, header) is None


def test_a_file_that_vanishes_or_shrinks_once_it_was_found_is_damaged(tmp_path: Path) -> None:
    header = Header(2, "f" * 32, "dali", 8, 0, 1, 5)
    file = save_shard(tmp_path, header, np.ones((5, 2), np.int32), torch.zeros((5, 8, 8, 3), dtype=torch.uint8))
    saved = find_shard(tmp_path, header)
    assert saved is not None
    os.truncate(file, HEADER_BYTES + 100)
    assert [part.damage for part in saved.parts()] == ["it is cut off"]
    file.unlink()
    assert [part.damage for part in saved.parts()] == ["it cannot be read: No such file or directory"]


def test_an_image_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jpg cannot be decoded: No such file or directory"):
        fingerprint(str(tmp_path), Split([str(tmp_path / "gone.jpg")], np.array([0])))


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
    assert f"data.cache_dir={tmp_path} cannot be written: No space left on device; 0." in caplog.text
    assert "MB are not saved" in caplog.text
    assert "make room, or data.cache_dir=PATH" in caplog.text
    assert list(tmp_path.iterdir()) == []


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
    assert list((tmp_path / "new").iterdir()) == []
