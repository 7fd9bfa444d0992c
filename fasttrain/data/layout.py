"""What a folder holds that is not ``train/CLASS`` and ``val/CLASS``, and the line that mends it."""

from __future__ import annotations

import os
import shlex
from collections import Counter

from fasttrain.config.describe import paste_text
from fasttrain.data.cifar10 import TRAIN_FILES
from fasttrain.errors import Problem

# What Pillow decodes and data sets of photographs come in.
IMAGE_ENDINGS = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".webp",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
)
# Names under which the validation split is found in data sets that are laid out differently.
VAL_NAMES = ("valid", "validation", "dev", "test", "eval")
LAYOUT = "expected ROOT/train/CLASS/*.JPEG and ROOT/val/CLASS/*.JPEG"
VAL_LABELS = "data.val_labels=FILE that says their classes (data/README.md names the formats)"
HOLD_OUT = "data.holdout_frac=0.1 to validate on a part of train/"


def visible(folder: str) -> list[os.DirEntry[str]]:
    """Entries of a folder but those whose name starts with a dot, sorted by name."""
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)


def is_image(name: str) -> bool:
    """Whether a file is an image by its ending."""
    return name.lower().endswith(IMAGE_ENDINGS)


def find_layout_problem(root: str, *, with_val: bool, kind: str) -> Problem | None:
    """Why ``root`` is not the folder that holds ``train/`` and, where it is needed, ``val/``."""
    where = f"data.root={root}"
    if not os.path.lexists(root):
        fix = f"fasttrain prepare shapes --root {shlex.quote(root)}" if kind == "shapes" else _right_path(root)
        return Problem(f"{where}: no such folder; {LAYOUT}", fix)
    if not os.path.exists(root):
        return Problem(f"{where} is a link to {os.readlink(root)}, which is not there", "data.root=PATH")
    if not os.path.isdir(root):
        return Problem(f"{where} is a file, expected a folder; {LAYOUT}", _unpacked(root))
    try:
        entries = visible(root)
        folders = [entry.name for entry in entries if entry.is_dir()]
        if "train" not in folders:
            return _without_train(root, entries, folders)
    except OSError as error:
        return Problem(f"{where} cannot be read: {error.strerror}", f"chmod -R a+rX {shlex.quote(root)}")
    if with_val and "val" not in folders:
        return _without_val(root, folders)
    return None


def is_sorted_into_classes(split: str) -> bool:
    """Whether a ``train/`` or ``val/`` is there and has class folders."""
    try:
        return any(entry.is_dir() for entry in visible(split))
    except OSError:
        return False


def wrong_split_folder(folder: str, endings: Counter[str]) -> Problem:
    """What is wrong with a ``train/`` or ``val/`` that has no class folders; ``endings`` of its files."""
    images = sum(count for ending, count in endings.items() if ending in IMAGE_ENDINGS)
    name = os.path.basename(folder)
    if not images:
        return Problem(f"{folder} has no class folders; {LAYOUT}", "data/README.md shows how to get a set")
    return Problem(
        f"{name} has no class folders: {folder} holds {images} images side by side, and nothing says their classes",
        f"{VAL_LABELS}, or move them into {name}/CLASS/ folders named as in train/"
        if name == "val"
        else f"move them into {name}/CLASS/ folders, one a class (data/README.md shows the layout)",
    )


def _without_train(root: str, entries: list[os.DirEntry[str]], folders: list[str]) -> Problem:
    where, parent = f"data.root={root}", os.path.dirname(root)
    if not entries:
        return Problem(f"{where} is empty; {LAYOUT}", "data/README.md shows how to get a set")
    below = [name for name in folders if _has_splits(os.path.join(root, name))]
    if below:
        return Problem(
            f"{where} is one level too high: train/ and val/ are in {', '.join(below[:5])}/",
            " or ".join(paste_text("data.root", os.path.join(root, name)) for name in below[:5]),
        )
    for above in (parent, os.path.dirname(parent)):
        if _has_splits(above):
            return Problem(f"{where} is too low: train/ and val/ are in {above}", paste_text("data.root", above))
    if any(entry.name == TRAIN_FILES[0] for entry in entries):
        return Problem(f"{where} holds CIFAR-10's binary files, not folders of images", "data=cifar10")
    if os.path.basename(root) == "train":
        return Problem(
            f"{where} is too low: it is the training split itself, and there is no val/ beside it",
            f"{paste_text('data.root', parent)} {HOLD_OUT}",
        )
    if any(_has_image(os.path.join(root, name)) for name in folders[:5]):
        return Problem(
            f"{where} has class folders ({', '.join(folders[:3])}, ...) but no train/ and val/ around them",
            f"move them into {shlex.quote(f'{root}/train/')}, then {HOLD_OUT}",
        )
    if _has_image(root):
        return Problem(
            f"{where} holds images side by side, so that nothing says their classes; {LAYOUT}",
            "move them into train/CLASS/ folders (data/README.md shows the layout)",
        )
    names = ", ".join(entry.name for entry in entries[:5])
    return Problem(f"{where} has no train/ folder, only {names}; {LAYOUT}", "data.root=PATH of such a one")


def _without_val(root: str, folders: list[str]) -> Problem:
    other = next((name for name in folders if name.lower() in VAL_NAMES), None)
    if other:
        return Problem(
            f"data.root={root} has no val/ folder, but {other}/",
            f"ln -s {other} {shlex.quote(f'{root}/val')} to validate on it, or {HOLD_OUT}",
        )
    return Problem(f"data.root={root} has train/ but no val/", f"add val/CLASS/ folders, or {HOLD_OUT}")


def _has_splits(folder: str) -> bool:
    return all(os.path.isdir(os.path.join(folder, name)) for name in ("train", "val"))


def _has_image(folder: str) -> bool:
    return any(is_image(entry.name) for entry in visible(folder))


def _right_path(root: str) -> str:
    """The longest part of a missing path that is there, to show where it went wrong."""
    there = os.path.dirname(root)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    return f"data.root=PATH of the folder that holds train/ and val/ ({there} is there)"


def _unpacked(root: str) -> str:
    if root.endswith((".tar", ".tgz", ".gz", ".zip")):
        return "unpack it, then data.root=PATH of the unpacked folder (data/README.md shows how)"
    return "data.root=PATH of the folder that holds train/ and val/"
