"""``fasttrain prepare NAME``: make a data set, check one, or say how to get it. Imports no torch."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from fasttrain.data.layout import HOLD_OUT
from fasttrain.errors import ConfigError, DataError, Problem

SHAPES_ROOT = "data/shapes"  # as in conf/data/shapes.yaml


@dataclass(frozen=True)
class DataSet:
    """A published data set.

    Attributes:
        kind: How it is read: an option of ``data``.
        num_train, num_val, num_classes: What a complete one has.
        recipe: One that trains on it.
        steps: Shell lines that get it and lay it out at ``{root}``; data/README.md explains them.
    """

    kind: str
    num_train: int
    num_val: int
    num_classes: int
    recipe: str
    steps: str


DATA_SETS = {
    "imagenet": DataSet(
        kind="imagefolder",
        num_train=1_281_167,  # arXiv:1409.0575, table 2
        num_val=50_000,
        num_classes=1000,
        recipe="resnet50_dawnbench",
        steps="""\
ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz come from
https://image-net.org/download-images after signing in there. Put them into {root}, then:
    mkdir -p {root}/train && tar -xf {root}/ILSVRC2012_img_train.tar -C {root}/train
    for f in {root}/train/n*.tar; do mkdir "${{f%.tar}}" && tar -xf "$f" -C "${{f%.tar}}" && rm "$f"; done
    python -c "import sys; from torchvision.datasets import imagenet as i; \\
        i.parse_devkit_archive(sys.argv[1]); i.parse_val_archive(sys.argv[1])" {root}""",
    ),
    "imagenette": DataSet(
        kind="imagefolder",
        num_train=9_469,  # github.com/fastai/imagenette, version 2
        num_val=3_925,
        num_classes=10,
        recipe="imagenette_128_5",
        steps="""\
imagenette2-320.tgz comes from https://github.com/fastai/imagenette ("320 px download"). Then:
    mkdir -p {root} && tar -xzf imagenette2-320.tgz -C {root} --strip-components=1""",
    ),
    "cifar10": DataSet(
        kind="cifar10",
        num_train=50_000,  # www.cs.toronto.edu/~kriz/cifar.html
        num_val=10_000,
        num_classes=10,
        recipe="cifar10_basic",
        steps="""\
cifar-10-binary.tar.gz comes from https://www.cs.toronto.edu/~kriz/cifar.html ("binary version"). Then:
    mkdir -p {root} && tar -xzf cifar-10-binary.tar.gz -C {root} --strip-components=1""",
    ),
}
NAMES = ("shapes", *DATA_SETS)


def prepare(name: str, root: Path | None, *, check: bool = False) -> str:
    """Make ``shapes``, check any set that is there, or say how to get one that cannot be made.

    Args:
        name: One of ``NAMES``.
        root: Folder of the set; None: ``data/shapes`` for ``shapes``, a placeholder where nothing is read.
        check: Only look at what is there.

    Returns:
        What to print.

    Raises:
        ConfigError: Unknown name; nothing to check.
        DataError: The set is missing, incomplete or laid out differently.
    """
    if name not in NAMES:
        close = difflib.get_close_matches(name.lower(), NAMES, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        fix = f"fasttrain prepare {close[0] if close else 'NAME'} (names: {', '.join(NAMES)})"
        raise ConfigError(Problem(f"prepare {name}: no such data set{meant}", fix))
    if not check and name != "shapes":
        return _how_to_get(name, root)
    try:
        if name == "shapes":
            return _prepare_shapes(Path(SHAPES_ROOT) if root is None else root, check=check)
        return _check_published(name, root)
    except DataError as error:
        raise as_flags(error, f"fasttrain prepare {name} --root PATH") from error


def as_flags(error: DataError, command: str) -> DataError:
    """The same error in words for a command that takes ``--root PATH`` and no settings (``data.root=PATH``).

    Args:
        error: What the scanner says.
        command: What to type where the scanner's fix is settings only.
    """
    return DataError([_problem_as_flags(problem, command) for problem in error.problems])


def _problem_as_flags(problem: Problem, command: str) -> Problem:
    what = re.sub(r"\bdata=(\w+) reads", r"\1 reads", problem.what)
    # Holding out a part of train/ is the trainer's to do.
    fix = re.sub(rf"(?:,? ?\b(?:or|then) | )?{re.escape(HOLD_OUT)}", "", problem.fix)
    if re.fullmatch(r"data=\w+", fix):
        fix = f"{command} of the set that it names"
    fix = re.sub(r" *# the next run makes it again, or: .*", "", fix)
    what, fix = (text.replace("data.root=", "--root ") for text in (what, fix))
    return Problem(what, fix or command, problem.where)


def _check_published(name: str, root: Path | None) -> str:
    if root is None:
        raise ConfigError(
            Problem(f"prepare {name} --check: which folder?", f"fasttrain prepare {name} --root PATH --check")
        )
    return _check(name, root)


def _prepare_shapes(root: Path, *, check: bool) -> str:
    from fasttrain.data.shapes import CLASSES, check_shapes, ensure_shapes

    made = not check and ensure_shapes(root)
    spec = check_shapes(root)
    counts = _counts(spec.num_train, spec.num_val, len(CLASSES))
    where = "" if str(root) == SHAPES_ROOT else f" data.root={root}"
    return f"shapes: {'made' if made else 'found'} {counts} in {root}\n{_train_line('quickstart', where)}"


def _how_to_get(name: str, root: Path | None) -> str:
    data_set = DATA_SETS[name]
    folder = "PATH" if root is None else shlex.quote(str(root))
    counts = _counts(data_set.num_train, data_set.num_val, data_set.num_classes)
    return (
        f"{name}: {counts}. It is not downloaded for you.\n"
        f"{data_set.steps.format(root=folder)}\n"
        f"Check it:\n    fasttrain prepare {name} --root {folder} --check\n"
        "More about it: data/README.md"
    )


def _check(name: str, root: Path) -> str:
    data_set = DATA_SETS[name]
    found, notes = _count(data_set.kind, os.path.abspath(root.expanduser()))
    expected = (data_set.num_train, data_set.num_val, data_set.num_classes)
    if found != expected:
        what = f"{root}: {_counts(*found)}; a complete {name} has {_counts(*expected)}"
        raise DataError(
            Problem(what, f"fasttrain prepare {name} --root {shlex.quote(str(root))}    # says how it is laid out")
        )
    lines = [f"{name}: {_counts(*found)} in {root}, as published", *notes]
    return "\n".join([*lines, _train_line(data_set.recipe, f" data.root={root}")])


def _count(kind: str, root: str) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Training images, validation images, classes; and the scanner's notes."""
    if kind == "cifar10":
        from fasttrain.data.cifar10 import read_cifar10

        records = read_cifar10(root)
        return (len(records.train_labels), len(records.val_labels), len(records.classes)), ()
    from fasttrain.data.folders import read_image_folder

    folder = read_image_folder(root, with_val=True, kind=kind)
    return (len(folder.train_paths), len(folder.val_paths), len(folder.classes)), folder.notes


def _counts(num_train: int, num_val: int, num_classes: int) -> str:
    return f"{num_train:,} training and {num_val:,} validation images of {num_classes:,} classes"


def _train_line(recipe: str, override: str) -> str:
    return f"train on it: python train.py recipe={recipe}{override}"
