"""``fasttrain prepare NAME --check`` of a folder that is not the set's: what lies there, and where the set is."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from fasttrain.cli import main
from fasttrain.data.cifar10 import RECORD_BYTES, TRAIN_FILES, VAL_FILES
from fasttrain.data.imagenet import TRAIN
from fasttrain.data.known_sets import DATA_SETS
from fasttrain.data.prepare import prepare
from fasttrain.data.shapes import make_shapes
from fasttrain.errors import DataError, Problem


def said(name: str, root: Path) -> Problem:
    with pytest.raises(DataError) as caught:
        prepare(name, root, check=True)
    (problem,) = caught.value.problems
    return problem


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small sets that count as complete: imagenette2, cifar, shapes."""
    sizes = {"num_train": 4, "num_val": 2, "num_classes": 2}
    monkeypatch.setitem(DATA_SETS, "imagenette", dataclasses.replace(DATA_SETS["imagenette"], **sizes))
    write_images(tmp_path / "imagenette2")
    monkeypatch.setitem(DATA_SETS, "cifar10", dataclasses.replace(DATA_SETS["cifar10"], num_train=20, num_val=4))
    (tmp_path / "cifar").mkdir()
    for name in (*TRAIN_FILES, *VAL_FILES):
        (tmp_path / "cifar" / name).write_bytes(bytes(RECORD_BYTES) * 4)
    make_shapes(tmp_path / "shapes", num_train=32, num_val=16, px=32, workers=1)
    return tmp_path


def write_images(root: Path, num_classes: int = 2) -> None:
    for split, num in (("train", 2), ("val", 1)):
        for label in range(num_classes):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(num):
                (folder / f"{number}.JPEG").write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("imagenette", "", "imagenette2"),
        ("imagenette", "imagenette2/train", "imagenette2"),
        ("imagenette", "imagenette2/val/class1", "imagenette2"),
        ("imagenette", "imagenet2", "imagenette2"),
        ("imagenette", "gone/deeper", "imagenette2"),
        ("imagenette", "cifar", "imagenette2"),
        ("imagenette", "shapes", "imagenette2"),
        ("cifar10", "", "cifar"),
        ("cifar10", "cifar10", "cifar"),
        ("cifar10", "imagenette2", "cifar"),
        ("shapes", "", "shapes"),
        ("shapes", "shapes/train", "shapes"),
        ("shapes", "imagenette2", "shapes"),
    ],
)
def test_a_set_that_is_near_is_meant_and_the_line_to_paste_finds_it(
    sets: Path, capsys: pytest.CaptureFixture[str], name: str, given: str, meant: str
) -> None:
    problem = said(name, sets / given)
    assert problem.what.endswith(f"; did you mean {sets / meant}?")
    command, *arguments = shlex.split(problem.fix)
    assert command == "fasttrain"
    assert main(arguments) == 0
    assert str(sets / meant) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "given"),
    [("imagenet", "imagenette2"), ("imagenet", "cifar"), ("imagenet", "shapes")],
)
def test_a_folder_of_another_set_is_told_by_its_name(sets: Path, name: str, given: str) -> None:
    other = {"imagenette2": "imagenette", "cifar": "cifar10"}.get(given, given)
    problem = said(name, sets / given)
    assert problem.what.endswith(f"; it looks like {other}")
    assert problem.fix == f"fasttrain prepare {other} --root {sets / given} --check"
    assert main(shlex.split(problem.fix)[1:]) == 0


@pytest.mark.parametrize("name", list(DATA_SETS))
@pytest.mark.parametrize("given", ["absent", "empty", "notes"])
def test_where_nothing_is_near_it_is_said_what_was_found_and_expected(tmp_path: Path, name: str, given: str) -> None:
    root = tmp_path / "here" / given
    (tmp_path / "here" / "empty").mkdir(parents=True)
    (tmp_path / "here" / "notes").mkdir()
    (tmp_path / "here" / "notes" / "readme.txt").write_text("")
    problem = said(name, root)
    found = {"absent": "no such folder", "empty": "is empty", "notes": "only readme.txt"}[given]
    assert found in problem.what
    assert ("ROOT/data_batch_1.bin" if name == "cifar10" else "ROOT/train/CLASS/*.JPEG") in problem.what
    assert problem.fix.startswith(f"fasttrain prepare {name} --root {root} ")
    assert main(shlex.split(problem.fix, comments=True)[1:]) == 0


def test_shapes_are_made_where_nothing_is(tmp_path: Path) -> None:
    for name, found in (("absent", "no such folder"), ("empty", "no shapes.json")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        problem = said("shapes", tmp_path / name)
        assert found in problem.what
        assert problem.fix == f"fasttrain prepare shapes --root {tmp_path / name}    # makes it"
    write_images(tmp_path / "photographs", num_classes=3)
    assert "--root PATH " in said("shapes", tmp_path / "photographs").fix


def test_archives_that_lie_there_are_to_be_unpacked_if_the_set_is_not_below(sets: Path) -> None:
    root = sets / "new"
    root.mkdir()
    for name, archive in (("imagenette", "imagenette2-160.tgz"), ("cifar10", "cifar-10-python.tar.gz")):
        (root / archive).write_bytes(b"")
        assert said(name, root).fix == f"fasttrain prepare {name} --root {root} --from {root / archive}"
    (root / TRAIN).write_bytes(b"")
    assert said("imagenet", root).fix == f"fasttrain prepare imagenet --root {root}    # unpacks the archives in it"
    (sets / "imagenette2").rename(root / "imagenette2")
    assert said("imagenette", root).fix == f"fasttrain prepare imagenette --root {root / 'imagenette2'} --check"


def test_half_a_set_is_unpacked_again_or_its_other_split_is_validated_on(tmp_path: Path) -> None:
    (tmp_path / "set" / "train" / "a").mkdir(parents=True)
    problem = said("imagenette", tmp_path / "set")
    assert "has train/ but no val/" in problem.what
    assert problem.fix.startswith(f"fasttrain prepare imagenette --root {tmp_path / 'set'} ")
    (tmp_path / "set" / "test" / "a").mkdir(parents=True)
    assert said("imagenette", tmp_path / "set").fix.startswith("ln -s test ")


def test_somebodys_own_images_are_no_known_set(tmp_path: Path) -> None:
    write_images(tmp_path / "photographs", num_classes=3)
    # Not beside: three classes could be anything.
    assert "did you mean" not in said("imagenette", tmp_path / "absent").what
    # Below, or with a name one letter away, it is what was meant.
    for near in (tmp_path, tmp_path / "photograph"):
        assert f"did you mean {tmp_path / 'photographs'}?" in said("imagenette", near).what
    counted = said("imagenette", tmp_path / "photographs")
    assert "6 training and 3 validation images of 3 classes; a complete imagenette has 9,469" in counted.what
    assert "did you mean" not in counted.what


def test_folders_that_cannot_be_listed_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)

    (tmp_path / "empty").mkdir()
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("fasttrain.data.wrong_folder.visible", refuse)
    assert "is empty" in said("imagenette", tmp_path / "empty").what
