"""A file that cannot be decoded ends the run with its name, the reason and what to do."""

from __future__ import annotations

import contextlib
import shutil
import struct
import zlib
from pathlib import Path

import pytest
import torch

from fasttrain.data import image_file
from fasttrain.data.path import build_data_path
from fasttrain.data.scan import scan
from fasttrain.errors import DataError, MachineError
from tests.data.samples import make_config, make_folder, make_plan, photo
from tests.data.test_backends import BACKENDS, needs_dali


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def cut_png(path: Path) -> None:
    photo(50, 50, seed=3).save(path, format="PNG")
    truncate(path)


def claim_sides(path: Path) -> None:
    """A PNG whose header, with a sum that fits, says as many pixels as it can."""
    photo(50, 50, seed=3).save(path, format="PNG")
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 2**31 - 1, 2**31 - 1)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


BREAK = {
    "zero": (lambda path: path.write_bytes(b""), "the file is empty"),
    "html": (lambda path: path.write_text("<html>404</html>"), "not an image, it starts with b'<html>"),
    "truncated": (truncate, "truncated"),
    "truncated_png": (cut_png, "truncated"),
    "gone": (lambda path: path.unlink(), "No such file"),
    "claims": (claim_sides, "its header says 2,147,483,647 x 2,147,483,647 pixels"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
}


@pytest.fixture
def root(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "set"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", BREAK)
def test_bad_file_is_named(root: Path, backend: str, kind: str) -> None:
    config = make_config([{"min_area": 1.0, "batch_size": 13}], root=str(root), backend=backend)
    found = scan(config)
    bad = Path(found.train.paths[12])
    bad_val = Path(found.val.paths[10])
    damage, reason = BREAK[kind]
    damage(bad)
    damage(bad_val)
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=torch.device("cpu"), rank=0, world_size=1)
    try:
        with pytest.raises(DataError) as raised:
            list(path.train_epoch(plan.epochs[0]))
        text = str(raised.value)
        assert f"{bad} cannot be decoded: " in text
        assert reason in text
        assert "get the file again" in text
        assert "data.on_bad_file=skip" in text
        with pytest.raises(DataError, match=str(bad_val)):
            list(path.val_batches(32))
    finally:
        path.close()


@pytest.mark.parametrize("kind", BREAK)
def test_bad_file_is_named_alike_with_a_cache(root: Path, kind: str) -> None:
    config = make_config([{"min_area": 1.0}], root=str(root), backend="torchvision", cache="host")
    found = scan(config)
    bad = Path(found.train.paths[12])
    damage, reason = BREAK[kind]
    damage(bad)
    plan = make_plan(config, found.num_train)

    def first_epoch() -> None:
        path = build_data_path(config, found, plan, device=torch.device("cpu"), rank=0, world_size=1)
        with contextlib.closing(path):
            list(path.train_epoch(plan.epochs[0]))

    with pytest.raises(DataError) as raised:
        first_epoch()
    text = str(raised.value)
    assert f"{bad} cannot be decoded: " in text
    assert reason in text
    assert "data.on_bad_file=skip" in text


def test_memory_that_a_file_does_not_fit_into_is_the_machines(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    path = str(next((root / "train").rglob("*.JPEG")))
    monkeypatch.setattr(image_file.Image.Image, "load", full)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", full)
    for read in (image_file.why_bad, lambda path: image_file.explained(path, image_file.open_image(path).load)):
        with pytest.raises(MachineError, match=f"{path} cannot be decoded: the memory"):
            read(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_file_of_an_epoch_that_was_left_does_no_harm(root: Path, backend: str) -> None:
    config = make_config([{"batch_size": 26}], root=str(root), backend=backend)
    found = scan(config)
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=torch.device("cpu"), rank=0, world_size=1)
    try:
        val = path.val_batches(32)
        steps = path.train_epoch(plan.epochs[0])
        next(steps)
        Path(found.train.paths[3]).write_bytes(b"")
        assert sum(batch.num_valid for batch in val) == 11
        with pytest.raises(DataError, match=found.train.paths[3]):
            list(path.train_epoch(plan.epochs[1]))
        assert sum(batch.num_valid for batch in val) == 11
    finally:
        path.close()


def test_many_bad_files_are_counted(tmp_path: Path) -> None:
    from fasttrain.data.decode import find_bad_files

    root = make_folder(tmp_path, {"train": {"a": 9}})
    paths = sorted(root.rglob("*.JPEG"))
    for path in paths[1:]:
        path.write_bytes(b"")
    problems = find_bad_files([str(path) for path in paths])
    assert len(problems) == 6
    assert "and 3 more files" in problems[-1].what
    assert str(paths[1]) in problems[0].what


def test_sizes_come_from_headers(folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    from fasttrain.data.decode import image_sizes
    from fasttrain.data.scan import Split

    split = scan(make_config(root=str(folder))).val
    sizes = image_sizes(split)
    for path, (height, width) in zip(split.paths, sizes.tolist(), strict=True):
        with Image.open(path) as image:
            assert image.size == (width, height)
    (tmp_path / "x.jpg").write_text("<html>")
    with pytest.raises(DataError, match=r"x.jpg cannot be decoded: not an image"):
        image_sizes(Split([str(tmp_path / "x.jpg")]))


@needs_dali
def test_a_jpeg_without_its_end_is_refused_before_dali_decodes_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NvJPEG fills the missing rows with gray and says nothing."""
    from fasttrain.data import dali_backend

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the batch was decoded")

    config = make_config([{"batch_size": 26}], root=str(root), backend="dali")
    found = scan(config)
    bad = Path(found.train.paths[12])
    bad.write_bytes(bad.read_bytes()[:-200])
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=torch.device("cpu"), rank=0, world_size=1)
    monkeypatch.setattr(dali_backend, "box_inputs", never)
    try:
        with pytest.raises(DataError, match=f"{bad} cannot be decoded: image file is truncated"):
            list(path.train_epoch(plan.epochs[0]))
    finally:
        path.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_behind_the_end_and_a_lost_middle_are_decoded(root: Path, backend: str) -> None:
    config = make_config([{"batch_size": 26}], root=str(root), backend=backend)
    found = scan(config)
    files = [Path(path) for path in found.train.paths[:2]]
    photo(200, 260, seed=3).save(files[0])
    content = files[0].read_bytes()
    files[0].write_bytes(content + bytes(100))
    files[1].write_bytes(content[: len(content) // 2] + content[len(content) * 2 // 3 :])
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=torch.device("cpu"), rank=0, world_size=1)
    try:
        for epoch in plan.epochs:
            ((batch,),) = path.train_epoch(epoch)
            assert batch.num_valid == 26
    finally:
        path.close()
