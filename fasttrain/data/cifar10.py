"""CIFAR-10's published binary layout: ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``.

A record is one byte with the class and 3072 bytes with the pixels: 32 x 32 red, then green, then blue.
Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasttrain.config.describe import paste_text
from fasttrain.errors import DataError, Problem

TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
VAL_FILES = ("test_batch.bin",)
NAMES_FILE = "batches.meta.txt"
LAYOUT = "expected the files ROOT/data_batch_1.bin to data_batch_5.bin and ROOT/test_batch.bin"
NUM_CLASSES = 10
PLANE = 32 * 32
RECORD_BYTES = 1 + 3 * PLANE


@dataclass(frozen=True, eq=False)
class Cifar10:
    """Both splits; labels int64 [n], images uint8 [n, 32, 32, 3]."""

    classes: tuple[str, ...]
    train_labels: NDArray[np.int64]
    train_images: NDArray[np.uint8]
    val_labels: NDArray[np.int64]
    val_images: NDArray[np.uint8]


def read_cifar10(root: str, *, with_val: bool = True) -> Cifar10:
    """Read the files of ``root``; without ``with_val`` the validation split is empty.

    Raises:
        DataError: Files that are missing, cut off or hold other classes; all of them at once.
    """
    files = [*TRAIN_FILES, *(VAL_FILES if with_val else ())]
    missing = [name for name in files if not os.path.isfile(os.path.join(root, name))]
    if missing:
        raise DataError(missing_files(root, missing))
    found = [_read(os.path.join(root, name)) for name in files]
    problems = [records for records in found if isinstance(records, Problem)]
    if problems:
        raise DataError(problems)
    records = [part for part in found if not isinstance(part, Problem)]
    train_labels, train_images = _split(records[: len(TRAIN_FILES)])
    val_labels, val_images = _split(records[len(TRAIN_FILES) :])
    return Cifar10(_class_names(root), train_labels, train_images, val_labels, val_images)


def missing_files(root: str, missing: list[str]) -> Problem:
    """Why ``root`` is not the folder that holds the files, of which it lacks ``missing``."""
    where = f"data.root={root}"
    if not os.path.isdir(root):
        return Problem(f"{where}: no such folder; {LAYOUT}", "data.root=PATH of the folder that holds data_batch_1.bin")
    try:
        found = sorted(os.scandir(root), key=lambda entry: entry.name)
        entries = [entry.name for entry in found if entry.is_dir()]
    except OSError as error:
        return Problem(f"{where} cannot be read: {error.strerror}", f"chmod -R a+rX {shlex.quote(root)}")
    for name in entries:
        if os.path.isfile(os.path.join(root, name, TRAIN_FILES[0])):
            fix = paste_text("data.root", os.path.join(root, name))
            return Problem(f"{where} is one level too high: the files are in {name}/", fix)
    if "train" in entries:
        return Problem(f"{where} is a folder of images, data=cifar10 reads binary files", "data=imagefolder")
    if os.path.isfile(os.path.join(root, "data_batch_1")):
        return Problem(
            f"{where} holds the Python version of CIFAR-10",
            "fasttrain prepare cifar10 --root PATH --from cifar-10-python.tar.gz writes the binary version's files",
        )
    holds = ", ".join(entry.name for entry in found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    if not {entry.name for entry in found}.intersection((*TRAIN_FILES, *VAL_FILES)):
        what = f"{where} {f'holds only {holds}' if found else 'is empty'}; {LAYOUT}"
    else:
        what = f"{where} lacks {', '.join(missing)}; it holds {holds}"
    return Problem(
        what,
        "fasttrain prepare cifar10, or data.root=PATH of the folder that holds them",
    )


def _read(path: str) -> NDArray[np.uint8] | Problem:
    """A file's records, uint8 [n, RECORD_BYTES], or what is wrong with it."""
    try:
        size = os.path.getsize(path)
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        return _unreadable(path, error)
    if size == 0 or size % RECORD_BYTES:
        return Problem(
            f"{path} has {size} bytes, not a multiple of {RECORD_BYTES} (one record): it is cut off or not "
            "CIFAR-10's binary version",
            "unpack or download it again (data/README.md)",
        )
    records = content.reshape(-1, RECORD_BYTES)
    wrong = np.flatnonzero(records[:, 0] >= NUM_CLASSES)
    if len(wrong):
        return Problem(
            f"{path}: record {wrong[0]} has class {records[wrong[0], 0]}, expected 0 to {NUM_CLASSES - 1} "
            f"({len(wrong)} such records)",
            "unpack or download it again (data/README.md); CIFAR-100 has another layout",
        )
    return records


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(f"{path} cannot be read: {error.strerror}", f"chmod a+r {shlex.quote(path)}, or unpack it again")


def _split(files: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Labels and pixels of the records of some files, one file after the other."""
    num_images = sum(map(len, files))
    labels, images = np.empty(num_images, dtype=np.int64), np.empty((num_images, 32, 32, 3), dtype=np.uint8)
    start = 0
    for records in files:
        rows = slice(start, start + len(records))
        labels[rows] = records[:, 0]
        pixels = images[rows].reshape(len(records), PLANE, 3)
        # A plane at a time: a transposed copy of all of it takes seven times as long.
        for channel in range(3):
            pixels[:, :, channel] = records[:, 1 + channel * PLANE :][:, :PLANE]
        start = rows.stop
    return labels, images


def _class_names(root: str) -> tuple[str, ...]:
    path = os.path.join(root, NAMES_FILE)
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                names = tuple(line.strip() for line in file if line.strip())
        except OSError as error:
            raise DataError(_unreadable(path, error)) from error
        if len(names) != NUM_CLASSES:
            raise DataError(
                Problem(
                    f"{path} has {len(names)} names of classes, expected {NUM_CLASSES}, one a line",
                    "unpack it again (data/README.md), or remove it to call the classes 0 to 9",
                )
            )
        return names
    return tuple(str(label) for label in range(NUM_CLASSES))
