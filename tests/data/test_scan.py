"""What the scanner finds, and what it says of a folder that is laid out in another way."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fasttrain.data.scan import hold_out, scan
from fasttrain.errors import DataError
from tests.data.samples import make_config, make_folder, write_cifar10


def message(root: Path | str | None, **settings: object) -> str:
    """The error of a scan, in one line."""
    with pytest.raises(DataError) as raised:
        scan(make_config(root=None if root is None else str(root), **settings))
    assert raised.value.exit_code == 3
    return " ".join(str(raised.value).split())


def test_classes_are_sorted_folders_of_the_training_split(folder: Path) -> None:
    found = scan(make_config(root=str(folder)))
    assert found.classes == ("ant", "bee", "cat")
    assert (found.num_train, found.num_val, found.num_classes, found.source) == (26, 11, 3, "scan")
    assert found.train.labels.tolist() == [0] * 10 + [1] * 9 + [2] * 7
    assert found.val.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 3
    assert found.train.paths[10] == str(folder / "train" / "bee" / "000.JPEG")
    assert found.train.labels.dtype == np.int64
    assert found.notes == ()


def test_names_as_people_give_them(tmp_path: Path) -> None:
    elsewhere = make_folder(tmp_path / "other", {"x": {"linked": 2}}) / "x" / "linked"
    root = tmp_path / "image net"
    for split in ("train", "val"):
        make_folder(root, {split: {"图像": 1, "sea cow": 1}})
        (root / split / "linked").symlink_to(elsewhere)
        (root / split / ".cache").mkdir()
        (root / split / "sea cow" / "more").mkdir()
        (root / split / "README.txt").write_text("x")
        first = root / split / "sea cow" / "000.JPEG"
        for name in ("a.Jpg", "b.jpeg", "c.PNG", "d.webp", "e.bmp", "more/f.JPG", ".hidden.jpg", "._a.Jpg"):
            shutil.copy(first, first.parent / name)
        (first.parent / "notes.txt").write_text("x")
    found = scan(make_config(root=str(root)))
    assert found.classes == ("linked", "sea cow", "图像")
    assert np.bincount(found.train.labels).tolist() == np.bincount(found.val.labels).tolist() == [2, 7, 1]
    assert [os.path.basename(path) for path in found.train.paths[2:9]] == [
        "000.JPEG", "a.Jpg", "b.jpeg", "c.PNG", "d.webp", "e.bmp", "f.JPG",
    ]  # fmt: skip
    assert len(found.notes) == 2
    assert "passed over 2 files" in found.notes[0]
    assert "2 .txt" in found.notes[0]


def test_a_link_to_a_folder_around_it_ends(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"train": {"a": 1, "b": 1}, "val": {"a": 1, "b": 1}})
    (root / "train" / "a" / "loop").symlink_to(root / "train" / "a")
    assert scan(make_config(root=str(root))).num_train == 2


def test_root_null_or_missing(tmp_path: Path) -> None:
    assert "data.root=null" in message(None)
    text = message(tmp_path / "imagenet" / "typo")
    assert "no such folder" in text
    assert f"({tmp_path} is there)" in text
    assert "fasttrain prepare shapes" in message(tmp_path / "shapes", kind="shapes")


def test_root_is_a_file_or_a_dead_link(tmp_path: Path) -> None:
    (tmp_path / "set.tar").write_bytes(b"")
    assert "is a file" in message(tmp_path / "set.tar")
    assert "unpack" in message(tmp_path / "set.tar")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "which is not there" in message(tmp_path / "link")


def test_relative_root_counts_from_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert scan(make_config(root=folder.name)).root == str(folder)


def test_empty_root(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").write_bytes(b"x")
    assert f"data.root={tmp_path} is empty" in message(tmp_path)


def test_root_one_level_too_high_or_too_low(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "imagenette2").symlink_to(folder)
    text = message(tmp_path)
    assert "one level too high" in text
    assert f"fix: data.root={tmp_path / 'imagenette2'}" in text
    for below in (folder / "train", folder / "val", folder / "train" / "ant"):
        text = message(below)
        assert "too low" in text
        assert f"fix: data.root={folder}" in text


def test_a_training_split_alone(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}})
    text = message(tmp_path / "train")
    assert f"fix: data.root={tmp_path} data.holdout_frac=0.1" in text
    text = message(tmp_path)
    assert "no val/" in text
    assert "data.holdout_frac=0.1" in text
    assert scan(make_config(root=str(tmp_path), holdout_frac=0.5)).num_val == 2


def test_class_folders_or_images_without_a_split(tmp_path: Path) -> None:
    make_folder(tmp_path, {".": {"a": 2, "b": 2}})
    text = message(tmp_path)
    assert "has class folders (a, b, ...) but no train/ and val/" in text
    assert "data.holdout_frac" in text
    flat = tmp_path / "flat"
    flat.mkdir()
    shutil.copy(tmp_path / "a" / "000.JPEG", flat / "1.jpg")
    assert "holds images side by side" in message(flat)


def test_validation_under_another_name(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 1, "b": 1}, "validation": {"a": 1, "b": 1}})
    assert f"ln -s validation {tmp_path}/val" in message(tmp_path)


def test_flat_validation_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(folder / "train")
    (tmp_path / "val").mkdir()
    for number in (1, 2):
        target = tmp_path / "val" / f"ILSVRC2012_val_0000000{number}.JPEG"
        shutil.copy(folder / "val" / "ant" / "000.JPEG", target)
    text = message(tmp_path)
    assert "val has no class folders" in text
    assert "2 images" in text
    assert "data/README.md" in text
    (tmp_path / "empty").mkdir()
    (tmp_path / "val").rename(tmp_path / "old")
    (tmp_path / "empty").rename(tmp_path / "val")
    assert "val has no class folders" in message(tmp_path)


def test_classes_that_differ_are_listed_up_to_five_a_side(tmp_path: Path) -> None:
    train = {f"t{i}": 1 for i in range(7)} | {"both": 1}
    make_folder(tmp_path, {"train": train, "val": {"both": 1, "v0": 1}})
    text = message(tmp_path)
    assert "7 only in train/: t0, t1, t2, t3, t4 and 2 more" in text
    assert "1 only in val/: v0" in text


def test_empty_class_folders_are_named(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 1, "b": 0}, "val": {"a": 1, "b": 1}})
    assert re.search(r"/train: no images in 1 of 2 class folders: b ", message(tmp_path))
    none = tmp_path / "none"
    make_folder(none, {"train": {"a": 0, "b": 0}, "val": {"a": 0, "b": 0}})
    (none / "train" / "a" / "notes.txt").write_text("x")
    assert "train: no images in its 2 class folders (a, b)" in message(none)


def test_dead_class_link_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 1, "b": 1}, "val": {"a": 1, "b": 1}})
    (tmp_path / "train" / "c").symlink_to(tmp_path / "gone")
    assert f"{tmp_path}/train/c is a link to {tmp_path}/gone, which is not there" in message(tmp_path)


@pytest.mark.parametrize("below", ["", "train", "train/bee"])
def test_unreadable_folder_is_named(folder: Path, below: str, fail_when_read: Callable[[str], None]) -> None:
    path = os.path.join(folder, below).rstrip("/")
    fail_when_read(path)
    assert f"{path} cannot be read: Permission denied" in message(folder)


def test_counts_are_compared_all_at_once(folder: Path) -> None:
    text = message(folder, num_train=27, num_val=12, num_classes=4, model_classes=10)
    assert f"data.num_train=27, but {folder} has 26 training images" in text
    assert "data.num_val=12" in text
    assert "data.num_classes=4" in text
    assert "data has 3 classes, model.num_classes=10" in text
    assert "model.num_classes=3" in text
    fine = make_config(root=str(folder), num_train=26, num_val=11, num_classes=3, model_classes=3)
    assert scan(fine).source == "scan"


def test_held_out_images_are_a_share_of_each_class_for_any_seed(folder: Path) -> None:
    settings = {"root": str(folder), "holdout_frac": 0.3, "num_train": 26, "num_val": 999}
    found = scan(make_config(**settings))
    again = scan(make_config(**settings, run_seed=2))
    assert np.bincount(found.val.labels).tolist() == [3, 3, 2]
    assert (found.num_train, found.num_val) == (18, 8)
    assert list(found.val.paths) == list(again.val.paths)
    every = scan(make_config(root=str(folder))).train
    assert sorted([*found.train.paths, *found.val.paths]) == sorted(every.paths)
    of = dict(zip(every.paths, every.labels.tolist(), strict=True))
    assert [of[path] for path in found.train.paths] == found.train.labels.tolist()


def test_held_out_share_is_never_all_of_a_class() -> None:
    labels = np.array([0, 1, 1, 2, 2, 2])
    assert np.bincount(labels[hold_out(labels, 0.99)], minlength=3).tolist() == [0, 1, 2]
    assert np.bincount(labels[hold_out(labels, 0.01)], minlength=3).tolist() == [0, 1, 1]


@pytest.mark.parametrize("settings", [{"backend": "synthetic"}, {"run_dry_run": True}])
def test_expected_counts_without_images(settings: dict[str, object]) -> None:
    counts = {"num_train": 1000, "num_val": 50, "num_classes": 10}
    found = scan(make_config(**counts, **settings))
    assert (found.source, found.num_train, found.num_val, found.num_classes) == ("expected", 1000, 50, 10)
    held = scan(make_config(**counts, **settings, holdout_frac=0.1))
    assert (held.num_train, held.num_val) == (900, 100)
    text = message(None, num_train=5, **settings)
    assert "data.num_val, data.num_classes cannot be null" in text
    assert "fix: data.num_val=50000 data.num_classes=1000" in text
    assert "data has 10 classes, model.num_classes=7" in message(None, **counts, **settings, model_classes=7)


def test_dry_run_reads_the_images_that_are_there(folder: Path, tmp_path: Path) -> None:
    assert scan(make_config(root=str(folder), run_dry_run=True)).source == "scan"
    absent = make_config(root=str(tmp_path / "x"), run_dry_run=True, num_train=9, num_val=3, num_classes=3)
    assert scan(absent).source == "expected"


def test_kind_and_folder_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    assert "fix: data=imagefolder" in message(folder, kind="cifar10")
    assert "fix: data=cifar10" in message(write_cifar10(tmp_path))


@pytest.mark.parametrize("kind", ["imagefolder", "cifar10", "shapes"])
def test_dry_run_without_the_folder(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "gone"
    assert f"data.root={root}: no such folder" in message(root, kind=kind, run_dry_run=True)
    known = {"num_train": 20, "num_val": 10, "num_classes": 10}
    found = scan(make_config(kind=kind, root=str(root), run_dry_run=True, **known))
    assert found.notes == (f"data.root={root} does not exist; the recipe's counts are used",)
    assert (found.source, found.num_train) == ("expected", 20)
    assert scan(make_config(kind=kind, run_dry_run=True, **known)).notes == ()


def test_fixes_paste_where_paths_hold_blanks_and_commas(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "a, b" / "set", {"train": {"x": 1}, "val": {"x": 1}})
    assert f"fix: 'data.root=\"{root}\"'" in message(root.parent)
    assert f"fix: 'data.root=\"{root}\"'" in message(root / "train")
    cifar10 = write_cifar10(tmp_path / "c d" / "bin")
    assert f"fix: 'data.root={cifar10}'" in message(cifar10.parent, kind="cifar10")
