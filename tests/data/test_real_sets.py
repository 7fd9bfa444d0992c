"""Folders as people have them: what both back ends see of links, hidden files, odd names and few images."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
import torch

from fasttrain.data.path import build_data_path
from fasttrain.data.scan import scan
from fasttrain.data.validation import MAX_SHAPES
from fasttrain.errors import DataError
from fasttrain.stages import check as check_stages
from tests.data.samples import make_config, make_folder, make_plan
from tests.data.test_backends import BACKENDS
from tests.data.test_path import epoch_rows, make_paths

CPU = torch.device("cpu")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes with odd names, an image in each of the ways that one can be reached."""
    root = make_folder(tmp_path / "image net", {split: {"图像 β": 3, "sea cow": 4} for split in ("train", "val")})
    elsewhere = make_folder(tmp_path / "other", {"x": {"y": 2}}) / "x" / "y"
    for split in ("train", "val"):
        cow = root / split / "sea cow"
        (cow / "000.JPEG").rename(cow / "0.JPG")
        (cow / "001.JPEG").rename(cow / "été 1.Jpeg")
        (cow / "inner").symlink_to(elsewhere)
        (cow / "back").symlink_to(root / split)
        (cow / "self").symlink_to(cow / "self")
        (cow / "gone").symlink_to(root / "gone")
        (cow / "link.png").symlink_to(elsewhere / "000.JPEG")
        (cow / ".hidden.JPEG").write_bytes(b"x")
        (cow / "._0.JPG").write_bytes(b"x")
        (cow / "Thumbs.db").write_bytes(b"x")
        (root / split / ".ipynb_checkpoints").mkdir()
        (root / split / ".git").mkdir()
    return root


@pytest.mark.parametrize("backend", BACKENDS)
def test_links_hidden_files_and_odd_names_train_alike(root: Path, backend: str) -> None:
    config = make_config([{"batch_size": 10}], root=str(root), backend=backend)
    found = scan(config)
    assert found.classes == ("sea cow", "图像 β")
    # 4 of its own, one by a link, 2 in a linked folder; a link to a folder around it is not followed.
    assert found.train.labels.tolist() == [0] * 7 + [1] * 3
    assert len(found.notes) == 2
    assert "passed over 3 files" in found.notes[0]
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=CPU, rank=0, world_size=1)
    try:
        ((batch,),) = path.train_epoch(plan.epochs[0])
        assert sorted(batch.labels.tolist()) == [0] * 7 + [1] * 3
        assert sum(batch.num_valid for batch in path.val_batches(32)) == 10
    finally:
        path.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_in_an_old_encoding(root: Path, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = os.fsencode(root / "train" / "sea cow")
    try:
        os.rename(folder + b"/0.JPG", folder + b"/vache \xe9t\xe9.JPG")
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    Path(os.fsdecode(folder + b"/zero \xff.jpg")).write_bytes(b"")
    config = make_config([{"batch_size": 5}], root=str(root), backend=backend, on_bad_file="skip")
    found = scan(config)
    skipped = [path for path, _ in found.skipped]
    assert f"{root}/train/sea cow/zero \\xff.jpg" in skipped
    for text in (*skipped, *found.notes):
        text.encode("utf-8")
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=CPU, rank=0, world_size=1)
    try:
        assert len(list(path.train_epoch(plan.epochs[0]))) == 2
    finally:
        path.close()


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_class_folder_that_leads_to_itself_is_named(root: Path, split: str) -> None:
    (root / split / "loop").symlink_to(root / split / "loop")
    with pytest.raises(DataError, match=r"/loop is a link to .*, which leads nowhere or back to itself\n *fix: rm "):
        scan(make_config(root=str(root)))


def test_a_class_that_is_missing_on_one_side_is_named(root: Path) -> None:
    shutil.rmtree(root / "val" / "图像 β")
    with pytest.raises(DataError, match="1 only in train/: 图像 β"):
        scan(make_config(root=str(root)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_needs_shared_memory_or_other_processes(
    folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing.Process, "start", refuse)
    monkeypatch.setattr("multiprocessing.shared_memory.SharedMemory.__init__", refuse)
    config = make_config([{"batch_size": 13}], root=str(folder), backend=backend, workers=4)
    found = scan(config)
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=CPU, rank=0, world_size=1)
    try:
        assert len(list(path.train_epoch(plan.epochs[0]))) == 2
        assert sum(batch.num_valid for batch in path.val_batches(32)) == 11
    finally:
        path.close()


def test_one_image_behind_the_last_whole_batch_fills_up_a_batch() -> None:
    """BatchNorm has no statistics over a single image."""
    plan, (path,) = make_paths([{"batch_size": 4}], num_train=17, num_shards=1)
    rows = epoch_rows(path, plan, 0)
    assert [len(step) for step in rows] == [4] * 5
    assert rows[4][1:] == rows[0][:3]
    assert {row for step in rows for row in step} == set(range(17))


def test_two_machines_of_two_ranks_share_four_ways() -> None:
    plan, paths = make_paths([{"batch_size": 8}], num_train=16, num_val=10, ranks=4)
    shares = [{row for step in epoch_rows(path, plan, 0) for row in step} for path in paths]
    assert [len(share) for share in shares] == [4] * 4
    assert set.union(*shares) == set(range(16))
    assert sum(batch.num_valid for path in paths for batch in path.val_batches(32)) == 10


def test_more_ranks_than_images() -> None:
    _, paths = make_paths([{"batch_size": 8}], num_train=26, num_val=3, ranks=8)
    counted = [batch.num_valid for path in paths for batch in path.val_batches(32)]
    assert {len(path.val_batches(32)) for path in paths} == {1}
    assert sorted(counted) == [0] * 5 + [1] * 3
    problems = check_stages(make_config([{"batch_size": 8}]), 3, 8)
    assert any("3 images" in problem.what for problem in problems)


@pytest.mark.parametrize("ranks", [1, 3, 20])
def test_rectangles_count_every_image_once_and_have_few_shapes(folder: Path, ranks: int) -> None:
    counted, shapes = 0, set()
    for rank in range(ranks):
        config = make_config([{"val_px": 40, "batch_size": 20}], root=str(folder))
        found = scan(config)
        plan = make_plan(make_config([{"val_px": 40, "batch_size": 60}]), 60, world_size=ranks)
        path = build_data_path(config, found, plan, device=CPU, rank=rank, world_size=ranks)
        try:
            batches = list(path.val_batches(40, rectangular=True))
            assert [tuple(batch.images_nhwc.shape[:3]) for batch in batches] == path.val_shapes(40, rectangular=True)
            counted += sum(batch.num_valid for batch in batches)
            shapes |= {tuple(batch.images_nhwc.shape[1:3]) for batch in batches}
        finally:
            path.close()
    assert counted == 11
    assert len(shapes) <= MAX_SHAPES
    assert all(min(shape) == 40 and max(shape) % 8 == 0 for shape in shapes)
