"""``fasttrain prepare``: what it makes, what it finds, and what it says where there is nothing to unpack."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from fasttrain.data.cifar10 import RECORD_BYTES, TRAIN_FILES, VAL_FILES
from fasttrain.data.known_sets import DATA_SETS, NAMES, SHAPES_ROOT
from fasttrain.data.prepare import prepare
from fasttrain.data.shape_drawing import CLASSES
from fasttrain.data.shapes import Spec, make_shapes
from fasttrain.errors import ConfigError, DataError

REPOSITORY = Path(__file__).parents[2]


def _expect(monkeypatch: pytest.MonkeyPatch, name: str, num_train: int, num_val: int, num_classes: int) -> None:
    """Let a complete set of this name be a small one."""
    small = dataclasses.replace(DATA_SETS[name], num_train=num_train, num_val=num_val, num_classes=num_classes)
    monkeypatch.setitem(DATA_SETS, name, small)


def _write_images(root: Path, names: Iterable[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name, "JPEG")


def _shell_lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("    "))


def test_shapes_are_made_then_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def make(root: Path) -> bool:
        if root.exists():
            return False
        make_shapes(root, num_train=32, num_val=16, px=32, workers=1)
        return True

    monkeypatch.setattr("fasttrain.data.shapes.ensure_shapes", make)
    root = tmp_path / "set"
    counts = f"32 training and 16 validation images of 16 classes in {root}\n"
    train = f"train on it: python train.py recipe=quickstart data.root={root}"
    assert prepare("shapes", root) == f"shapes: made {counts}{train}"
    assert prepare("shapes", root) == f"shapes: found {counts}{train}"
    assert prepare("shapes", root, check=True) == f"shapes: found {counts}{train}"


def test_check_makes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for root in (None, tmp_path / "set"):
        with pytest.raises(DataError, match="not a set of shapes"):
            prepare("shapes", root, check=True)
    assert list(tmp_path.iterdir()) == []


def test_shapes_in_conf_are_what_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf = yaml.safe_load((REPOSITORY / "conf/data/shapes.yaml").read_text())
    made: list[Spec] = []
    monkeypatch.setattr("fasttrain.data.shapes._write_set", lambda part, spec, workers: made.append(spec))
    make_shapes(tmp_path / "set")
    assert (conf["num_train"], conf["num_val"]) == (made[0].num_train, made[0].num_val)
    assert conf["num_classes"] == len(CLASSES)
    assert conf["root"] == SHAPES_ROOT


@pytest.mark.parametrize("name", ["imagenette", "imagenet"])
def test_check_counts_a_folder_of_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    _write_images(tmp_path, ["train/a/1.JPEG", "train/a/2.JPEG", "train/b/3.JPEG", "val/a/4.JPEG", "val/b/5.JPEG"])
    with pytest.raises(DataError, match="3 training and 2 validation images of 2 classes; a complete") as caught:
        prepare(name, tmp_path, check=True)
    assert f"{DATA_SETS[name].num_train:,} training" in str(caught.value)
    _expect(monkeypatch, name, 3, 2, 2)
    text = prepare(name, tmp_path, check=True)
    counts = f"{name}: 3 training and 2 validation images of 2 classes in {tmp_path}"
    assert text.startswith(f"{counts}, counts and classes as published\n")
    assert text.endswith(f"recipe={DATA_SETS[name].recipe} data.root={tmp_path}")


def test_check_counts_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*TRAIN_FILES, *VAL_FILES):
        (tmp_path / name).write_bytes(bytes(RECORD_BYTES) * 4)
    _expect(monkeypatch, "cifar10", 20, 4, 10)
    assert "20 training and 4 validation images of 10 classes" in prepare("cifar10", tmp_path, check=True)


@pytest.mark.parametrize("name", list(DATA_SETS))
def test_check_of_a_missing_folder_is_a_data_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="no such folder"):
        prepare(name, tmp_path / "absent", check=True)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("imagenette", []),
        ("imagenette", ["inner/train/a/1.JPEG", "inner/val/a/2.JPEG"]),
        ("imagenette", ["train/a/1.JPEG"]),
        ("imagenette", ["train/a/1.JPEG", "test/a/2.JPEG"]),
        ("imagenette", ["a/1.JPEG"]),
        ("imagenette", ["data_batch_1.bin"]),
        ("cifar10", ["train/a/1.JPEG"]),
        ("shapes", ["a/1.JPEG"]),
        ("shapes", ["train/a/1.JPEG", "val/a/2.JPEG"]),
    ],
)
def test_words_of_check_name_no_settings(tmp_path: Path, name: str, files: list[str]) -> None:
    _write_images(tmp_path, files)
    with pytest.raises(DataError) as caught:
        prepare(name, tmp_path, check=True)
    (problem,) = caught.value.problems
    assert f"--root {tmp_path}" in problem.what
    assert problem.fix
    assert not re.search(r"\bdata[=.]\w+=?", str(caught.value).replace("data/README.md", "")), str(caught.value)


def test_check_needs_a_root() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare("cifar10", None, check=True)
    assert caught.value.problems[0].fix == "fasttrain prepare cifar10 --root PATH --check"


@pytest.mark.parametrize(
    ("name", "meant"), [("imagenete", "imagenette"), ("CIFAR10", "cifar10"), ("shape", "shapes"), ("mnist", None)]
)
def test_unknown_name(name: str, meant: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(name, None)
    problem = caught.value.problems[0]
    assert (f"did you mean {meant}?" in problem.what) == (meant is not None)
    assert all(known in problem.fix for known in NAMES)


@pytest.mark.parametrize("name", list(DATA_SETS))
def test_without_check_a_published_set_is_explained(tmp_path: Path, name: str) -> None:
    text = prepare(name, tmp_path / "absent")
    assert f"{DATA_SETS[name].num_train:,} training" in text
    assert f"fasttrain prepare {name} --root {tmp_path}/absent --check" in text
    assert "PATH" not in text
    assert "--root PATH --check" in prepare(name, None)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("name", [*DATA_SETS, "shapes"])
def test_its_recipe_exists_and_the_readme_has_its_steps(name: str) -> None:
    recipe = DATA_SETS[name].recipe if name in DATA_SETS else "quickstart"
    assert (REPOSITORY / f"recipes/{recipe}.yaml").is_file()
    readme = (REPOSITORY / "data/README.md").read_text()
    if name in DATA_SETS:
        for line in _shell_lines(DATA_SETS[name].steps).splitlines():
            assert line.strip().format(root="PATH") in readme
            assert line.strip().startswith(f"fasttrain prepare {name} --root ")
        counts = (DATA_SETS[name].num_train, DATA_SETS[name].num_val, DATA_SETS[name].num_classes)
        assert all(f"{count:,}" in readme for count in counts)


def test_no_torch_is_imported(tmp_path: Path) -> None:
    _write_images(tmp_path, ["train/a/1.JPEG", "val/a/2.JPEG"])
    code = (
        "import sys, pathlib\n"
        "from fasttrain.data.prepare import prepare\n"
        "from fasttrain.errors import DataError\n"
        f"try: prepare('imagenet', pathlib.Path({str(tmp_path)!r}), check=True)\n"
        "except DataError: sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
