"""Folders of images, ``ROOT/{train,val}/CLASS/*.JPEG``: listed fast, refused with a reason and a fix."""

from __future__ import annotations

import os
import shlex
import stat
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fasttrain.data.layout import IMAGE_ENDINGS, find_layout_problem, is_image, visible, wrong_split_folder
from fasttrain.data.val_labels import read_val_labels
from fasttrain.errors import DataError, Problem

# Folders listed at once: what a network file system answers in parallel; a local disk needs fewer.
LISTING_THREADS = 16
# Class folders named in an error, of each kind.
MAX_NAMED = 5


@dataclass(frozen=True)
class ImageFolder:
    """Both splits, sorted by class and file name.

    Attributes:
        classes: Names of the class folders, sorted.
        train_paths, val_paths: Files, class after class.
        train_counts, val_counts: Images of each class.
        notes: What was passed over, a line for each split.
        no_files: Those of the paths where a named pipe, a socket or a device lies, which must not be opened.
    """

    classes: tuple[str, ...]
    train_paths: Sequence[str]
    train_counts: Sequence[int]
    val_paths: Sequence[str]
    val_counts: Sequence[int]
    notes: tuple[str, ...]
    no_files: Sequence[str] = ()


@dataclass(frozen=True)
class _SplitFolder:
    path: str
    classes: tuple[str, ...]
    files: Sequence[Sequence[str]]
    ignored: Counter[str]
    no_files: Sequence[str]


def read_image_folder(root: str, *, with_val: bool, kind: str, val_labels: str | None = None) -> ImageFolder:
    """List all images under ``root``; without ``with_val`` only the training split's.

    Class folders may be links; folders inside of a class folder belong to the class. Names that start with a
    dot are passed over, and files that are no images by their ending (any case) are counted in the notes.

    Args:
        root: Absolute path.
        with_val: Whether ``val/`` is needed.
        kind: ``imagefolder`` or ``shapes``; says what a missing set's fix is.
        val_labels: File with the classes of a ``val/`` that has no class folders.

    Raises:
        DataError: The layout is another one, folders are empty or unreadable, the splits' classes differ.
    """
    if problem := find_layout_problem(root, with_val=with_val, kind=kind):
        raise DataError(problem)
    splits = [_read_split(os.path.join(root, "train"))]
    if with_val and val_labels is not None:
        splits.append(_read_flat_split(os.path.join(root, "val"), splits[0].classes, val_labels))
    elif with_val:
        splits.append(_read_split(os.path.join(root, "val")))
    problems = [problem for split in splits for problem in _empty_classes(split)]
    problems += _different_classes(*splits) if with_val else []
    if problems:
        raise DataError(problems)
    train, val = splits[0], splits[1] if with_val else _SplitFolder("", (), (), Counter(), ())
    return ImageFolder(
        train.classes,
        [path for files in train.files for path in files],
        [len(files) for files in train.files],
        [path for files in val.files for path in files],
        [len(files) for files in val.files],
        tuple(note for split in splits if (note := _note(split))),
        [path for split in splits for path in split.no_files],
    )


def _read_split(folder: str) -> _SplitFolder:
    classes: list[str] = []
    ignored: Counter[str] = Counter()
    try:
        for entry in visible(folder):
            if os.path.isdir(entry.path):
                classes.append(entry.name)
            elif entry.is_symlink() and not os.path.exists(entry.path):
                raise DataError(_dead_link(entry.path))
            else:
                ignored[_ending(entry.name)] += 1
        classes.sort()
        if not classes:
            raise DataError(wrong_split_folder(folder, ignored))
        with ThreadPoolExecutor(LISTING_THREADS) as threads:
            paths = [os.path.join(folder, name) for name in classes]
            listed = list(threads.map(_images_below, paths, [_around(folder)] * len(paths)))
    except OSError as error:
        raise _unreadable(folder, error) from error
    for _, others, _ in listed:
        ignored.update(_ending(name) for name in others)
    no_files = [path for _, _, odd in listed for path in odd]
    return _SplitFolder(folder, tuple(classes), [files for files, _, _ in listed], ignored, no_files)


def _read_flat_split(folder: str, classes: tuple[str, ...], val_labels: str) -> _SplitFolder:
    """A split whose images lie side by side, sorted by class and file name as if they lay in class folders."""
    ignored: Counter[str] = Counter()
    names: list[str] = []
    folders: list[str] = []
    no_files: list[str] = []
    try:
        for entry in visible(folder):
            if is_image(entry.name):
                names.append(entry.name)
                if _is_no_file(entry):
                    no_files.append(entry.path)
            elif os.path.isdir(entry.path):
                folders.append(entry.name)
            else:
                ignored[_ending(entry.name)] += 1
    except OSError as error:
        raise _unreadable(folder, error) from error
    if folders:
        what = (
            f"data.val_labels={val_labels}, but {folder} has class folders ({_named(folders)}), which say the classes"
        )
        raise DataError(Problem(what, "data.val_labels=null"))
    if not names:
        raise DataError(wrong_split_folder(folder, ignored))
    files: dict[str, list[str]] = {name: [] for name in classes}
    for name, label in zip(names, read_val_labels(val_labels, names, classes), strict=True):
        files[label].append(f"{folder}/{name}")
    return _SplitFolder(folder, classes, list(files.values()), ignored, no_files)


def _dead_link(path: str) -> Problem:
    target, name = os.readlink(path), shlex.quote(path)
    if os.path.lexists(os.path.join(os.path.dirname(path), target)):
        return Problem(f"{path} is a link to {target}, which leads nowhere or back to itself", f"rm {name}")
    return Problem(f"{path} is a link to {target}, which is not there", f"mount or restore it, or rm {name}")


def _unreadable(folder: str, error: OSError) -> DataError:
    fix = f"chmod -R a+rX {shlex.quote(os.path.dirname(folder))}"
    return DataError(Problem(f"{error.filename or folder} cannot be read: {error.strerror}", fix))


def _around(split: str) -> frozenset[str]:
    """A split and all folders around it: followed, a link to one of them would make other classes a class's own."""
    real = Path(os.path.realpath(split))
    return frozenset(map(str, (real, *real.parents)))


def _is_no_file(entry: os.DirEntry[str]) -> bool:
    """Whether a pipe, a socket or a device lies there; asks the system about links alone, the listing says the rest."""
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
        return False
    try:
        mode = entry.stat().st_mode
    except OSError:
        return False  # a link to nothing hangs nobody, and whoever opens it says so
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _images_below(folder: str, outer: frozenset[str]) -> tuple[list[str], list[str], list[str]]:
    """Paths of the images, sorted, names of the files that are none, and those of the paths that are no files."""
    files: list[str] = []
    others: list[str] = []
    names: list[str] = []
    odd: list[str] = []
    # Names are kept, not entries: a set has a million of them.
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                names.append(entry.name)
                if is_image(entry.name) and _is_no_file(entry):
                    odd.append(f"{folder}/{entry.name}")
    for name in sorted(names):
        path = f"{folder}/{name}"
        if is_image(name):
            files.append(path)
        elif os.path.isdir(path):
            around = outer | {os.path.realpath(folder)}
            if os.path.realpath(path) not in around:  # else it would never end
                inner_files, inner_others, inner_odd = _images_below(path, around)
                files += inner_files
                others += inner_others
                odd += inner_odd
        else:
            others.append(name)
    return files, others, odd


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower() or "no ending"


def _note(split: _SplitFolder) -> str:
    if not split.ignored:
        return ""
    kinds = ", ".join(f"{count} {ending}" for ending, count in split.ignored.most_common(MAX_NAMED))
    count = split.ignored.total()
    return f"{split.path}: passed over {count} files that are not images in a class folder ({kinds})"


def _empty_classes(split: _SplitFolder) -> list[Problem]:
    empty = [name for name, files in zip(split.classes, split.files, strict=True) if not files]
    if not empty:
        return []
    if len(empty) == len(split.classes):
        return [
            Problem(
                f"{split.path}: no images in its {len(empty)} class folders ({_named(empty)})",
                f"images end in {', '.join(IMAGE_ENDINGS)} (any case); data/README.md shows the layout",
            )
        ]
    return [
        Problem(
            f"{split.path}: no images in {len(empty)} of {len(split.classes)} class folders: {_named(empty)}",
            "unpack them again, or remove the folder from both splits",
        )
    ]


def _different_classes(train: _SplitFolder, val: _SplitFolder) -> list[Problem]:
    only_train = sorted(set(train.classes) - set(val.classes))
    only_val = sorted(set(val.classes) - set(train.classes))
    if not only_train and not only_val:
        return []
    sides = [
        f"{len(names)} only in {os.path.basename(split.path)}/: {_named(names)}"
        for split, names in ((train, only_train), (val, only_val))
        if names
    ]
    return [
        Problem(
            f"class folders of {train.path} and {val.path} differ: {'; '.join(sides)}",
            "both splits need a folder of the same name for every class",
        )
    ]


def _named(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
