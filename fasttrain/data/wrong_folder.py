"""A folder that is not the data set's: which set lies in it, and where near it the wanted one is. Imports no torch."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from fasttrain.data.cifar10 import TRAIN_FILES, VAL_FILES
from fasttrain.data.imagenet import DEVKIT, TRAIN, VAL
from fasttrain.data.known_sets import DATA_SETS, NAMES
from fasttrain.data.layout import VAL_NAMES, visible
from fasttrain.data.published import MD5
from fasttrain.errors import DataError, Problem

# Folders of images whose number of classes is none of a known set's.
IMAGES = "images"
# How alike a folder's name and the one that was given must be to be taken for a slip of the keyboard, 0 to 1.
ALIKE = 0.85
# Folders looked into at one place: a network file system takes milliseconds for each.
MAX_FOLDERS = 100


def pointing_to_set(name: str, root: Path, error: DataError) -> DataError:
    """The same error with the likely fix, where ``root`` is not the folder of the set.

    Args:
        name: Of the set, one of ``NAMES``.
        root: The folder that was given for it.
        error: Why it is none, as the set's reader says.
    """
    folder = os.path.abspath(root.expanduser())
    here = set_in(folder)
    closed = os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)
    if here == name or closed or len(error.problems) > 1:
        return error
    (problem,) = error.problems
    if here is None and os.path.isdir(f"{folder}/train") and any(os.path.isdir(f"{folder}/{val}") for val in VAL_NAMES):
        return error
    what, quoted = problem.what, shlex.quote(folder)
    near = near_set(name, folder, alike_only=here is not None)
    archive = _archive_flag(name, folder) if here is None else None
    if near and (archive is None or _is_within(near, folder)):
        fix = f"fasttrain prepare {name} --root {shlex.quote(near)} --check"
        return DataError(Problem(f"{what}; did you mean {near}?", fix))
    if archive is not None:
        return DataError(Problem(what, f"fasttrain prepare {name} --root {quoted}{archive}"))
    if here in NAMES:
        return DataError(Problem(f"{what}; it looks like {here}", f"fasttrain prepare {here} --root {quoted} --check"))
    return DataError(Problem(what, _how_to_have_it(name, folder, here, problem.fix)))


def _how_to_have_it(name: str, folder: str, here: str | None, fix: str) -> str:
    """What to do where neither the set nor its archives are found; ``fix`` is what its reader proposes."""
    command = f"fasttrain prepare {name} --root"
    if name == "shapes":
        # They are made where nothing is, and only there.
        free = not os.path.lexists(folder) or (os.path.isdir(folder) and not os.listdir(folder))
        return f"{command} {shlex.quote(folder) if free else 'PATH'}    # makes it"
    if here == IMAGES and DATA_SETS[name].kind == "imagefolder":
        return fix
    if here is None and os.path.isdir(f"{folder}/train"):
        return f"{command} {shlex.quote(folder)}    # says how to unpack the rest"
    if os.path.exists(folder) and "PATH" not in fix and "README" not in fix:
        return fix
    return f"{command} {shlex.quote(folder)}    # says how to get it"


def set_in(folder: str) -> str | None:
    """The set that a folder looks like by its first files and its number of classes, complete or not.

    Returns:
        One of ``NAMES``, ``IMAGES``, or None where no set is laid out.
    """
    if os.path.isfile(os.path.join(folder, "shapes.json")):
        return "shapes"
    if all(os.path.isfile(os.path.join(folder, name)) for name in (TRAIN_FILES[0], VAL_FILES[0])):
        return "cifar10"
    if not all(os.path.isdir(os.path.join(folder, name)) for name in ("train", "val")):
        return None
    try:
        num_classes = sum(entry.is_dir() for entry in visible(os.path.join(folder, "train")))
    except OSError:
        return None
    known = (name for name, known in DATA_SETS.items() if known.kind == "imagefolder")
    return next((name for name in known if DATA_SETS[name].num_classes == num_classes), IMAGES)


def near_set(name: str, folder: str, *, alike_only: bool = False) -> str | None:
    """The folder of a set below, above or beside another, or beside the first missing part of its path.

    Args:
        name: Of the set.
        folder: Absolute path.
        alike_only: Leave out folders of images that could be any set's.
    """
    found = [(path, set_in(path)) for path in _around(folder)]
    exact = next((path for path, known in found if known == name), None)
    if exact or alike_only or name not in DATA_SETS or DATA_SETS[name].kind != "imagefolder":
        return exact
    beside = [path for path, known in found if known == IMAGES]
    inside = next((path for path in beside if _is_within(path, folder) or _is_within(folder, path)), None)
    return inside or next((path for path in beside if _alike(path, folder) >= ALIKE), None)


def _around(folder: str) -> Iterator[str]:
    """Folders below, above and beside one, in this order; where it is missing, beside the first missing part."""
    there = folder
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    if there == folder:
        children = _folders(folder)
        yield from children
        yield from (path for child in children[:10] for path in _folders(child)[:10])
        above = os.path.dirname(folder)
        yield from dict.fromkeys((above, os.path.dirname(above)))
        yield from _beside(folder)
    else:
        yield there
        beside = _beside(os.path.join(there, os.path.relpath(folder, there).split(os.sep)[0]))
        yield from beside
        yield from (path for other in beside[:10] for path in _folders(other)[:10])


def _beside(folder: str) -> list[str]:
    """The folders of the same parent, those with the most alike names first."""
    beside = [path for path in _folders(os.path.dirname(folder)) if path != folder]
    return sorted(beside, key=lambda path: -_alike(path, folder))


def _folders(folder: str) -> list[str]:
    try:
        return [entry.path for entry in visible(folder) if entry.is_dir()][:MAX_FOLDERS]
    except OSError:
        return []


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, os.path.basename(one).lower(), os.path.basename(other).lower()).ratio()


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _archive_flag(name: str, folder: str) -> str | None:
    """How to unpack the set's archives that lie in a folder; None where none does."""
    if name == "imagenet":
        # Its archives are looked for in the set's own folder.
        here = any(os.path.isfile(os.path.join(folder, file)) for file in (TRAIN, VAL, DEVKIT))
        return "    # unpacks the archives in it" if here else None
    start = {"imagenette": "imagenette2", "cifar10": "cifar-10"}.get(name)
    paths = [os.path.join(folder, archive) for archive in MD5 if start and archive.startswith(start)]
    return next((f" --from {shlex.quote(path)}" for path in paths if os.path.isfile(path)), None)
