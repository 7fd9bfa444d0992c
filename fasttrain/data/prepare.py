"""``fasttrain prepare NAME``: make a data set, check one, or say how to get it. Imports no torch."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fasttrain.data.imagenet import DEVKIT, IMAGENET, TRAIN, VAL, Expected, unpack_imagenet
from fasttrain.data.known_sets import DATA_SETS, NAMES, SHAPES_ROOT
from fasttrain.data.layout import HOLD_OUT, VAL_LABELS
from fasttrain.data.published import unpack_published
from fasttrain.data.wrong_folder import pointing_to_set
from fasttrain.errors import ConfigError, DataError, Problem
from fasttrain.regular_file import what_instead

MAX_NAMED = 5  # classes in an error


@dataclass(frozen=True)
class Sources:
    """Where the images come from.

    Attributes:
        archives: Folder of ImageNet's three archives; None for the set's own folder.
        source: File or address of the archive of another set.
        verify: Whether ImageNet's archives are compared with their published md5 sums first.
    """

    archives: Path | None = None
    source: str | None = None
    verify: bool = False


NO_SOURCES = Sources()


def prepare(name: str, root: Path | None, *, check: bool = False, sources: Sources = NO_SOURCES) -> str:
    """Make ``shapes``, unpack the archives of another set, check one that is there, or say how to get it.

    Args:
        name: One of ``NAMES``.
        root: Folder of the set; None: ``data/shapes`` for ``shapes``, a placeholder where nothing is read.
        check: Only look at what is there.
        sources: What to unpack.

    Returns:
        What to print.

    Raises:
        ConfigError: Unknown name; flags that this set does not have; nothing to check.
        DataError: The set or an archive is missing, incomplete or something else.
        MachineError: No room, no network, or another process at work.
    """
    if name not in NAMES:
        close = difflib.get_close_matches(name.lower(), NAMES, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        fix = f"fasttrain prepare {close[0] if close else 'NAME'} (names: {', '.join(NAMES)})"
        raise ConfigError(Problem(f"prepare {name}: no such data set{meant}", fix))
    if problems := _wrong_flags(name, root, check, sources):
        raise ConfigError(problems)
    try:
        if name == "shapes":
            return _prepare_shapes(Path(SHAPES_ROOT) if root is None else root, check=check)
        if check or (root is not None and _unpack(name, root.expanduser(), sources)):
            return _check_published(name, root)
    except DataError as error:
        said = as_flags(error, f"fasttrain prepare {name} --root PATH")
        raise (pointing_to_set(name, root, said) if check and root is not None else said) from error
    return _how_to_get(name, root)


def _wrong_flags(name: str, root: Path | None, check: bool, sources: Sources) -> list[Problem]:
    """Flags that do not go together, or with this set."""
    given = {"--archives": sources.archives, "--from": sources.source, "--verify": sources.verify}
    known = {"imagenet": ("--archives", "--verify"), "shapes": ()}.get(name, ("--from",))
    problems = []
    for flag in (flag for flag, value in given.items() if value):
        if flag not in known:
            others = f"it takes {' and '.join(known)}" if known else "it is made, not unpacked"
            problems.append(Problem(f"prepare {name} {flag}: {others}", f"fasttrain prepare {name} --root PATH"))
        elif check:
            problems.append(Problem(f"{flag} unpacks, --check only looks", "give one of them"))
        elif root is None:
            what = f"prepare {name} {flag}: into which folder?"
            problems.append(Problem(what, f"fasttrain prepare {name} --root PATH {flag} ..."))
    return problems


def _unpack(name: str, root: Path, sources: Sources) -> bool:
    """Unpack what there is to unpack; returns whether there was something, or all is there already."""
    if name == "imagenet":
        archives = root if sources.archives is None else sources.archives.expanduser()
        here = any((archives / file).is_file() for file in (TRAIN, VAL, DEVKIT))
        if not here and sources == NO_SOURCES:
            return False
        unpack_imagenet(root, archives, expected=_expected(), verify=sources.verify)
        return True
    if sources.source is None:
        return False
    if not _is_complete(name, root):
        unpack_published(name, sources.source, root, check=lambda folder: _refuse_incomplete(name, folder))
    return True


def _expected() -> Expected:
    data_set = DATA_SETS["imagenet"]
    return replace(IMAGENET, num_train=data_set.num_train, num_val=data_set.num_val, num_classes=data_set.num_classes)


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
    fix = fix.replace(f"{VAL_LABELS}, or ", "")
    if re.fullmatch(r"data=\w+", fix):
        fix = f"{command} of the set that it names"
    # So is leaving files out: what is evaluated or checked is all that lies there.
    fix = re.sub(r",? or data\.on_bad_file=skip.*", "", fix)
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
    notes = _refuse_incomplete(name, root)
    counts = _counts(data_set.num_train, data_set.num_val, data_set.num_classes)
    lines = [f"{name}: {counts} in {root}, counts and classes as published", *notes]
    return "\n".join([*lines, _train_line(data_set.recipe, f" data.root={root}")])


def _is_complete(name: str, root: Path) -> bool:
    try:
        _refuse_incomplete(name, root)
    except DataError:
        return False
    return True


def _refuse_incomplete(name: str, root: Path) -> tuple[str, ...]:
    """The scanner's notes about a complete set.

    Raises:
        DataError: What it has other than published, and what is as published.
    """
    data_set = DATA_SETS[name]
    found = _count(data_set.kind, os.path.abspath(root.expanduser()))
    counts = (sum(found.train), sum(found.val), len(found.classes))
    expected = (data_set.num_train, data_set.num_val, data_set.num_classes)
    if counts == expected:
        return found.notes
    fine = [word for word, a, b in zip(("train", "val", "classes"), counts, expected, strict=True) if a == b]
    what = f"{root}: {_counts(*counts)}; a complete {name} has {_counts(*expected)}"
    what += f" (as published: {', '.join(fine)})" if fine else ""
    if name == "imagenet":
        what += _odd_classes(found)
    raise DataError(
        Problem(what, f"fasttrain prepare {name} --root {shlex.quote(str(root))}    # says how it is laid out")
    )


@dataclass(frozen=True)
class _Found:
    """What a folder holds: names of the classes, images of each in both splits, the scanner's notes."""

    classes: Sequence[str]
    train: Sequence[int]
    val: Sequence[int]
    notes: tuple[str, ...] = ()


def _odd_classes(found: _Found) -> str:
    """The classes that have other numbers of images than any class of ImageNet has."""
    low, high = IMAGENET.min_per_class, IMAGENET.max_per_class
    # The same number of validation images in each class: the one that most have.
    usual = Counter(found.val).most_common(1)[0][0]
    odd = [f"train/{name} {n}" for name, n in zip(found.classes, found.train, strict=True) if not low <= n <= high]
    odd += [f"val/{name} {n}" for name, n in zip(found.classes, found.val, strict=True) if n != usual]
    more = f" and {len(odd) - MAX_NAMED} more" if len(odd) > MAX_NAMED else ""
    return f"; unusual numbers of images: {', '.join(odd[:MAX_NAMED])}{more}" if odd else ""


def _count(kind: str, root: str) -> _Found:
    if kind == "cifar10":
        from fasttrain.data.cifar10 import read_cifar10

        records = read_cifar10(root)
        train, val = (
            np.bincount(labels, minlength=len(records.classes)).tolist()
            for labels in (records.train_labels, records.val_labels)
        )
        return _Found(records.classes, train, val)
    from fasttrain.data.folders import read_image_folder

    folder = read_image_folder(root, with_val=True, kind=kind)
    if folder.no_files:
        path = folder.no_files[0]
        raise DataError(Problem(f"{path}: {what_instead(path)}", f"rm {shlex.quote(path)}, then unpack the set again"))
    return _Found(folder.classes, folder.train_counts, folder.val_counts, folder.notes)


def _counts(num_train: int, num_val: int, num_classes: int) -> str:
    return f"{num_train:,} training and {num_val:,} validation images of {num_classes:,} classes"


def _train_line(recipe: str, override: str) -> str:
    return f"train on it: python train.py recipe={recipe}{override}"
