"""The classes of a flat validation folder, from a file (``data.val_labels``). Imports no torch.

Either the devkit's ground truth (a class number a line, in the order of the files' numbers, with ``meta.mat`` or
``synsets.txt`` beside it), or lines of a file name and its class folder, separated by a comma, a tab or blanks.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fasttrain.data.devkit import (
    GROUND_TRUTH,
    META,
    SYNSETS,
    by_file_number,
    find_synsets,
    is_class_number,
    named,
    wnids_of,
)
from fasttrain.errors import DataError, Problem
from fasttrain.regular_file import require_regular_file

# A line as it should be, and the characters of another one that an error shows.
EXAMPLE = "e.g. ILSVRC2012_val_00000001.JPEG,n01751748"
MAX_SHOWN = 120
# First words of a line that names the columns.
HEADINGS = ("file", "filename", "file_name", "fname", "image", "imageid", "image_id", "id", "name", "path")
# The second column of Kaggle's LOC_val_solution.csv: the class and a box, again and again.
CLASS_AND_BOXES = re.compile(r"(\S+)(?: \d+ \d+ \d+ \d+)(?: \S+ \d+ \d+ \d+ \d+)* *")


def read_val_labels(file: str, names: Sequence[str], classes: Sequence[str]) -> list[str]:
    """The class folder of each validation image.

    Args:
        file: ``data.val_labels``.
        names: Of the files in ``val/``.
        classes: Class folders of the training split.

    Returns:
        A class for each of ``names``.

    Raises:
        DataError: The file cannot be read, or it and ``val/`` do not fit together image by image.
    """
    path = Path(file)
    try:
        require_regular_file(path)
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise DataError(
            Problem(f"data.val_labels={file} cannot be read: {why}", f"data.val_labels=/path/to/{GROUND_TRUTH}")
        ) from error
    filled = [line.strip() for line in lines if line.strip()]
    if not filled:
        raise DataError(Problem(f"data.val_labels={file} is empty: expected a line for each validation image"))
    if all(is_class_number(line) for line in filled):
        pairs = _from_numbers(path, [int(line) for line in filled], names)
    else:
        pairs = _from_names(file, lines, names, classes)
    return _checked(file, pairs, names, classes)


def _from_numbers(path: Path, numbers: list[int], names: Sequence[str]) -> list[tuple[str, str]]:
    wnids = find_synsets(path)
    if wnids is None:
        raise DataError(
            Problem(
                f"data.val_labels={path} holds class numbers alone, and neither {META} nor {SYNSETS} lies beside it: "
                "the devkit's numbers are not the places of the sorted class folders, so nothing says which folder "
                "a number means",
                f"name the file in the unpacked devkit, ILSVRC2012_devkit_t12/data/{GROUND_TRUTH}, or copy its {META} "
                f"beside yours, or write {SYNSETS} with lines of a number and its class folder",
            )
        )
    return by_file_number(names, wnids_of(numbers, wnids, str(path)), str(path))


def _from_names(file: str, lines: list[str], names: Sequence[str], classes: Sequence[str]) -> list[tuple[str, str]]:
    """File name and class of each line; names without an ending are those of the one file that is called so."""
    known, known_classes = set(names), set(classes)
    stems = Counter(os.path.splitext(name)[0] for name in names)
    whole = {stem: name for name in names if stems[stem := os.path.splitext(name)[0]] == 1}
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = _columns(line, f"data.val_labels={file}, line {number}")
        if number == 1 and words[0].lower() in HEADINGS and words[0] not in known:
            continue
        if len(words) != 2 or not words[1]:
            shown = repr(line.strip()[:MAX_SHOWN]) + (", ..." if len(line.strip()) > MAX_SHOWN else "")
            what = f"data.val_labels={file}, line {number} is {shown}: expected a file name and its class"
            raise DataError(Problem(what, EXAMPLE))
        name, label = words
        boxes = CLASS_AND_BOXES.fullmatch(label)
        if boxes and label not in known_classes:
            label = boxes[1]
        pairs.append((name if name in known else whole.get(name, name), label))
    return pairs


def _columns(line: str, source: str) -> list[str]:
    """The cells of a line: split at tabs, else at commas (with quotes as in CSV), else at the first blank."""
    if "\t" in line:
        cells = line.split("\t")
    elif "," in line:
        try:
            cells = next(csv.reader([line]))
        except csv.Error as error:
            what = f"{source} has {len(line):,} characters and is no line of CSV: {error}"
            raise DataError(Problem(what, EXAMPLE)) from error
    else:
        cells = line.split(maxsplit=1)
    return [cell.strip() for cell in cells]


def _checked(file: str, pairs: list[tuple[str, str]], names: Sequence[str], classes: Sequence[str]) -> list[str]:
    """The class of each name, once each has exactly one line and each class an image."""
    given, known = dict(pairs), set(classes)
    source = f"data.val_labels={file}"
    used = Counter(given.values())
    found = {
        "{n} file names have more than one line: {names}": [
            name for name, times in Counter(name for name, _ in pairs).items() if times > 1
        ],
        "{n} files of val/ have no line: {names}": [name for name in names if name not in given],
        "{n} lines name files that are not in val/: {names}": sorted(given.keys() - set(names)),
        "{n} classes have no folder in train/: {names}": sorted(used.keys() - known),
        "{n} class folders of train/ have no validation image: {names}": [name for name in classes if not used[name]],
    }
    problems = [
        Problem(f"{source}: {text.format(n=len(wrong), names=named(wrong))}", "correct its lines, or unpack val/ again")
        for text, wrong in found.items()
        if wrong
    ]
    unknown = used.keys() - known
    if unknown and all(label.isdecimal() for label in unknown):
        problems.append(
            Problem(
                f"{source}: its classes are numbers, which do not say in which order classes were counted (the "
                "devkit's, or the sorted folders')",
                "give each file the name of its class folder, e.g. ILSVRC2012_val_00000001.JPEG,n01751748, or use the "
                f"devkit's {GROUND_TRUTH} with {META} beside it",
            )
        )
    if problems:
        raise DataError(problems)
    return [given[name] for name in names]
