"""ImageNet's devkit: which class folder its class numbers mean, and the class of each validation image.

The devkit counts classes in an order of its own: number 1 is not the first of the sorted folders. Only the WordNet id
that ``meta.mat`` gives for a number names a folder. Imports no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fasttrain.data.mat5 import MatError, read_mat5
from fasttrain.errors import DataError, Problem

GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
META = "meta.mat"
# Instead of meta.mat: lines of a class number and its WordNet id.
SYNSETS = "synsets.txt"
WNID = re.compile(r"n\d{8}")
# Of a class's or a file's number.
MAX_DIGITS = 18
AGAIN = "get ILSVRC2012_devkit_t12.tar.gz again (data/README.md)"


def read_meta(content: bytes, source: str) -> dict[int, str]:
    """Class number to WordNet id, from ``meta.mat``; the inner nodes of the hierarchy are left out.

    Args:
        content: Of the file.
        source: Its name, for errors.

    Raises:
        DataError: It is no such file, or its numbers are not 1 to n.
    """
    try:
        synsets = read_mat5(content)["synsets"]
        leaves = [synset for synset in synsets if not synset["num_children"][0]]
        pairs = [(int(leaf["ILSVRC2012_ID"][0]), str(leaf["WNID"])) for leaf in leaves]
    except MatError as error:
        raise DataError(Problem(f"{source} cannot be read: {error}", AGAIN)) from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(Problem(f"{source} does not hold ImageNet's synsets", AGAIN)) from error
    return _checked(pairs, source)


def read_synsets(text: str, source: str) -> dict[int, str]:
    """Class number to WordNet id, from lines of both.

    Raises:
        DataError: A line has something else; a list of WordNet ids alone could be in either order.
    """
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        if len(words) < 2 or not is_class_number(words[0]) or not WNID.fullmatch(words[1]):
            raise DataError(
                Problem(
                    f"{source}, line {number} is {line.strip()[:99]!r}: expected the devkit's class number and a "
                    "WordNet id; a list without numbers could be in the devkit's order or sorted",
                    f"use the devkit's {META} instead",
                )
            )
        pairs.append((int(words[0]), words[1]))
    return _checked(pairs, source)


def _checked(pairs: Sequence[tuple[int, str]], source: str) -> dict[int, str]:
    """The pairs as a mapping from 1 to n onto n different WordNet ids."""
    wnids = dict(pairs)
    wrong = next((wnid for wnid in wnids.values() if not WNID.fullmatch(wnid)), None)
    if wrong is not None:
        raise DataError(Problem(f"{source}: {wrong!r} is not a WordNet id such as n01440764", AGAIN))
    if sorted(number for number, _ in pairs) != list(range(1, len(pairs) + 1)) or len(set(wnids.values())) != len(
        pairs
    ):
        raise DataError(Problem(f"{source}: its {len(pairs)} classes are not numbered from 1 on, each once", AGAIN))
    return wnids


def is_class_number(text: str) -> bool:
    """Whether a text is a number of the size of a class's or a file's: Python refuses to read ones of 4,300 digits."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def find_synsets(ground_truth: Path) -> dict[int, str] | None:
    """Class number to WordNet id from what lies beside a list of class numbers; None where nothing does.

    Raises:
        DataError: What lies there cannot be read.
    """
    meta, synsets = ground_truth.with_name(META), ground_truth.with_name(SYNSETS)
    try:
        if meta.is_file():
            return read_meta(meta.read_bytes(), str(meta))
        if synsets.is_file():
            return read_synsets(synsets.read_text(encoding="utf-8-sig"), str(synsets))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            Problem(f"{ground_truth.parent}: {META} or {SYNSETS} cannot be read: {error}", AGAIN)
        ) from error
    return None


def wnids_of(numbers: Sequence[int], wnids: Mapping[int, str], source: str) -> list[str]:
    """The class folder of each validation image, in the order of the images' own numbers.

    Args:
        numbers: Class numbers, one an image.
        wnids: Class number to WordNet id.
        source: Where the numbers come from, for errors.

    Raises:
        DataError: A number that no class has.
    """
    unknown = Counter(number for number in numbers if number not in wnids)
    if unknown:
        line = next(line for line, number in enumerate(numbers, 1) if number in unknown)
        what = f"{source}, line {line}: class {numbers[line - 1]}, expected 1 to {len(wnids)}"
        raise DataError(Problem(f"{what} ({unknown.total()} such lines)", AGAIN))
    return [wnids[number] for number in numbers]


def by_file_number(names: Sequence[str], classes: Sequence[str], source: str) -> list[tuple[str, str]]:
    """File names with their classes: line n of the ground truth belongs to ``ILSVRC2012_val_0000000n.JPEG``.

    Args:
        names: Of the files, in any order.
        classes: Of file number 1, 2, ...
        source: Of the classes, for errors.

    Raises:
        DataError: A file without a number, with one twice, or not as many files as classes.
    """
    found = {name: match[1] for name in names if (match := re.search(r"(\d+)\.\w+$", name))}
    numbers = {name: int(number) for name, number in found.items() if is_class_number(number)}
    problems = []
    nameless = [name for name in names if name not in numbers]
    if nameless:
        what = f"{len(nameless)} validation files have no number before their ending: {named(nameless)}"
        problems.append(Problem(what, "expected names such as ILSVRC2012_val_00000001.JPEG"))
    times = Counter(numbers.values())
    doubled = sorted(name for name, number in numbers.items() if times[number] > 1)
    if doubled:
        problems.append(Problem(f"two validation files have the same number: {named(doubled)}", "remove one of them"))
    missing = [str(number) for number in range(1, len(classes) + 1) if number not in times]
    if missing:
        what = f"{source} has {len(classes)} lines, but val/ lacks {len(missing)} files: number {named(missing)}"
        problems.append(Problem(what, "unpack ILSVRC2012_img_val.tar again"))
    beyond = sorted(name for name, number in numbers.items() if not 1 <= number <= len(classes))
    if beyond:
        what = f"{source} has {len(classes)} lines, none for {len(beyond)} validation files: {named(beyond)}"
        problems.append(Problem(what, AGAIN))
    if problems:
        raise DataError(problems)
    return [(name, classes[numbers[name] - 1]) for name in names]


def named(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
