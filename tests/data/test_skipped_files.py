"""``data.on_bad_file=skip``: what is left out, what stays as it is, and what is remembered of the files."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fasttrain.data import image_file, screening
from fasttrain.data.path import build_data_path
from fasttrain.data.scan import Scan, scan
from fasttrain.data.screening import screen, verdicts_file
from fasttrain.errors import DataError, MachineError
from tests.data.samples import make_config, make_plan, photo
from tests.data.test_backends import BACKENDS
from tests.data.test_bad_files import BREAK

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "set"))


def skipping(root: Path, **settings: Any) -> Scan:
    return scan(make_config(root=str(root), on_bad_file="skip", **settings))


def damage_all_kinds(root: Path) -> dict[str, str]:
    """One file of each kind of damage in training's second and third class; path to reason."""
    paths = sorted((root / "train" / "bee").iterdir()) + sorted((root / "train" / "cat").iterdir())
    broken = {}
    for path, (damage, reason) in zip(paths[1::2], BREAK.values(), strict=False):
        damage(path)
        broken[str(path)] = reason
    return {path: reason for path, reason in broken.items() if os.path.lexists(path)}


def test_every_kind_of_bad_file_is_left_out_and_labels_stay(root: Path, folder: Path) -> None:
    whole = scan(make_config(root=str(folder)))
    broken = damage_all_kinds(root)
    assert len(broken) == len(BREAK) - 1  # one kind is a file that is gone
    found = skipping(root)
    assert [path for path, _ in found.skipped] == sorted(broken)
    for path, reason in found.skipped:
        assert broken[path] in reason
    assert found.classes == whole.classes
    labels = dict(
        zip((os.path.relpath(p, folder) for p in whole.train.paths), whole.train.labels.tolist(), strict=True)
    )
    assert [labels[os.path.relpath(path, root)] for path in found.train.paths] == found.train.labels.tolist()
    assert found.num_train == len(found.train.paths) == 26 - len(BREAK)
    assert found.num_val == 11
    assert f"{len(broken)} of {37 - 1} files cannot be decoded" in found.notes[-1]
    assert all(path in found.notes[-1] for path in sorted(broken)[:5])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_left_trains_and_validates_exactly(root: Path, backend: str) -> None:
    damage_all_kinds(root)
    Path(root / "val" / "ant" / "000.JPEG").write_bytes(b"<html>")
    config = make_config([{"batch_size": 5}], root=str(root), backend=backend, on_bad_file="skip")
    found = scan(config)
    counted = 0
    for rank in range(2):
        plan = make_plan(make_config([{"batch_size": 6}]), found.num_train, world_size=2)
        path = build_data_path(config, found, plan, device=CPU, rank=rank, world_size=2)
        try:
            steps = list(path.train_epoch(plan.epochs[0]))
            assert len(steps) == plan.epochs[0].steps == -(-found.num_train // 6)
            counted += sum(batch.num_valid for batch in path.val_batches(32, rectangular=True))
        finally:
            path.close()
    assert counted == found.num_val == 10


def test_counts_of_the_recipe_are_those_of_the_folder(root: Path) -> None:
    broken = damage_all_kinds(root)
    gone = 1
    found = skipping(root, num_train=26 - gone, num_val=11, num_classes=3)
    assert found.num_train == 26 - gone - len(broken)
    with pytest.raises(DataError, match=r"data.num_train=26, but .* has 25 training images"):
        skipping(root, num_train=26)


def test_held_out_images_are_the_same_ones_without_the_bad(root: Path) -> None:
    before = scan(make_config(root=str(root), holdout_frac=0.3))
    Path(before.val.paths[0]).write_bytes(b"")
    Path(before.train.paths[0]).write_bytes(b"")
    after = skipping(root, holdout_frac=0.3)
    assert list(after.val.paths) == list(before.val.paths[1:])
    assert list(after.train.paths) == list(before.train.paths[1:])


@pytest.mark.parametrize(("split", "name"), [("train", "training"), ("val", "validation")])
def test_a_class_that_would_be_empty_is_an_error(root: Path, split: str, name: str) -> None:
    for path in (root / split / "bee").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError) as raised:
        skipping(root)
    (problem,) = raised.value.problems
    assert f"no {name} image in 1 classes (bee)" in problem.what
    assert f"{root}/{split}/bee/000.JPEG: the file is empty" in problem.what


def test_without_skip_nothing_is_decoded_before_the_run(root: Path, own_cache: Path) -> None:
    damage_all_kinds(root)
    found = scan(make_config(root=str(root)))
    assert found.skipped == ()
    assert found.num_train == 25
    assert not own_cache.exists()


def test_only_new_and_changed_files_are_decoded_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    real = screening.why_bad

    def noting(path: str) -> str | None:
        looked_at.append(path)
        return real(path)

    monkeypatch.setattr(screening, "why_bad", noting)
    bad = root / "train" / "ant" / "003.JPEG"
    good = bad.read_bytes()
    bad.write_bytes(b"")
    assert len(skipping(root).skipped) == 1
    assert len(looked_at) == 37
    looked_at.clear()
    assert skipping(root).skipped == ((str(bad), "the file is empty"),)
    assert looked_at == []
    bad.write_bytes(good)
    assert skipping(root).skipped == ()
    assert looked_at == [str(bad)]
    shutil.copy(bad, root / "val" / "ant" / "new.JPEG")
    looked_at.clear()
    assert skipping(root).num_val == 12
    assert looked_at == [str(root / "val" / "ant" / "new.JPEG")]


def test_a_book_that_another_version_wrote_or_that_is_cut_off_is_not_believed(root: Path) -> None:
    (root / "train" / "ant" / "003.JPEG").write_bytes(b"")
    expected = skipping(root).skipped
    book = verdicts_file(str(root))
    text = book.read_text()
    for damaged in (text.replace("verdicts 2", "verdicts 1").replace("\tthe file is empty", "\t"), text[:300], ""):
        book.write_text(damaged)
        assert skipping(root).skipped == expected
        assert book.read_text().count("\n") == 38


def test_the_other_ranks_wait_for_the_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(root=str(root), on_bad_file="skip")
    (root / "train" / "ant" / "003.JPEG").write_bytes(b"")
    found: list[Scan] = []
    other = threading.Thread(target=lambda: found.append(scan(config, local_rank=1)))
    other.start()
    time.sleep(0.3)
    assert found == []
    first = scan(config)
    other.join(timeout=30)
    assert found[0].skipped == first.skipped
    assert list(found[0].train.paths) == list(first.train.paths)
    assert np.array_equal(found[0].train.labels, first.train.labels)
    shutil.copy(root / "val" / "ant" / "000.JPEG", root / "val" / "ant" / "new.JPEG")
    monkeypatch.setattr(screening, "WAIT_SECONDS", 0.1)
    with pytest.raises(MachineError, match="did not grow for"):
        scan(config, local_rank=1)


def test_a_disk_that_fails_says_nothing_about_a_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(image_file.Image, "open", fail)
    with pytest.raises(DataError, match="cannot be read: Input/output error"):
        skipping(root)


def test_no_permission_and_links_to_nowhere_are_bad_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, real = str(root / "val" / "cat" / "000.JPEG"), image_file.Image.open

    def refuse(path: Any, *rest: Any) -> Any:
        if path == locked:  # the superuser may read everything
            raise PermissionError(errno.EACCES, "Permission denied", locked)
        return real(path, *rest)

    monkeypatch.setattr(image_file.Image, "open", refuse)
    (root / "train" / "ant" / "dead.jpg").symlink_to(root / "nowhere")
    (root / "train" / "ant" / "loop.jpg").symlink_to(root / "train" / "ant" / "loop.jpg")
    assert skipping(root).skipped == (
        (str(root / "train" / "ant" / "dead.jpg"), "No such file or directory"),
        (str(root / "train" / "ant" / "loop.jpg"), "Too many levels of symbolic links"),
        (locked, "Permission denied"),
    )


def test_verdicts_that_cannot_be_kept(root: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")
    with pytest.raises(
        MachineError, match=r"verdicts-\w+.tsv, which cannot be used[^\n]*\n *fix: XDG_CACHE_HOME="
    ) as raised:
        screen([str(root / "val" / "ant" / "000.JPEG")], str(root), first_of_machine=True)
    assert raised.value.exit_code == 4


ENCODED = {
    "JPEG": {"quality": 92},
    "progressive JPEG": {"progressive": True},
    "PNG": {},
    "WEBP": {},
    "GIF": {},
    "BMP": {},
    "TIFF": {},
}


@pytest.mark.parametrize("frac", [0.02, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("kind", ENCODED)
def test_a_quick_look_judges_as_a_whole_decode_does(tmp_path: Path, kind: str, frac: float) -> None:
    path = tmp_path / "x.jpg"
    photo(90, 130, seed=7).save(path, format=kind.split()[-1], **ENCODED[kind])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * frac)])
    try:
        with Image.open(path) as image:
            image_file.to_rgb(image)
    except Exception:
        assert image_file.why_bad(str(path))
        assert frac < 1
    else:
        assert image_file.why_bad(str(path)) is None
        assert frac == 1
