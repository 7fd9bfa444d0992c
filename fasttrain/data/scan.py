"""The one scanner: what images there are and what class each has, for every back end. Imports no torch.

Class ids are the places of the training split's class folders in sorted order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fasttrain.config.schema import RunConfig
from fasttrain.data.check import no_counts, no_root
from fasttrain.data.cifar10 import missing_files, read_cifar10
from fasttrain.data.folders import read_image_folder
from fasttrain.data.layout import find_layout_problem
from fasttrain.errors import DataError, Problem
from fasttrain.regular_file import what_instead

# Of the generator that chooses the held-out images: the same ones for every seed of a run.
HOLDOUT_KEY = 0x686F6C64
# Bad files that are named before the run; all are in its folder.
MAX_NAMED = 5


def _no_labels() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one split, in the order of the scan.

    Attributes:
        paths: Files; empty where ``images`` holds the pixels.
        labels: Class ids, int64 [n].
        images: CIFAR-10's pixels, uint8 [n, 32, 32, 3]; None for files.
    """

    paths: Sequence[str] = ()
    labels: NDArray[np.int64] = field(default_factory=_no_labels)
    images: NDArray[np.uint8] | None = None

    def part(self, rows: NDArray[np.int64]) -> Split:
        """The split of the images ``rows`` alone."""
        images = None if self.images is None else self.images[rows]
        paths = [self.paths[row] for row in rows.tolist()] if self.images is None else ()
        return Split(paths, self.labels[rows], images)


@dataclass(frozen=True)
class Counts:
    """How many there are; from the images or, without them, from ``data.num_*``."""

    train: int
    val: int
    classes: int


@dataclass(frozen=True, eq=False)
class Scan:
    """What there is to train on.

    Attributes:
        root: Absolute path of the data set; empty where the config names none.
        classes: Names in the order of their ids; empty for ``expected``.
        train, val: The splits; empty for ``expected``.
        source: ``scan``: found on disk. ``expected``: what the config says (synthetic data, or a dry run
            without the images).
        counts: Of what is trained and validated on: after holding out and leaving bad files out.
        notes: What was passed over, a line each.
        skipped: With ``data.on_bad_file=skip`` the files that cannot be decoded, each with the reason; they are
            no part of the splits.
    """

    root: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    source: Literal["scan", "expected"]
    counts: Counts
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def num_train(self) -> int:
        """Training images."""
        return self.counts.train

    @property
    def num_val(self) -> int:
        """Validation images."""
        return self.counts.val

    @property
    def num_classes(self) -> int:
        """Classes of the training split."""
        return self.counts.classes


def scan(config: RunConfig, *, local_rank: int = 0, val_only: bool = False) -> Scan:
    """List the images of the run, or take the counts that the config expects.

    ``data.num_*`` are compared with what lies in the folders, before bad files are left out.

    Args:
        config: The run.
        local_rank: Of this process. With ``data.on_bad_file=skip`` the first one of a machine decodes every file
            and the others wait for what it finds.
        val_only: Whether no training image will be read: bad files are looked for among the others alone.

    Raises:
        DataError: Layout, labels or counts that do not fit, each with its fix.
        MachineError: What is known of bad files cannot be kept.
    """
    data = config.data
    root = os.path.abspath(os.path.expanduser(data.root)) if data.root is not None else ""
    if data.backend == "synthetic" or (config.dry_run and not os.path.lexists(root)):
        return _expected(config, root)
    if not root:
        raise DataError(no_root(data))
    with_val = data.holdout_frac == 0
    notes: tuple[str, ...]
    if data.kind == "cifar10":
        records = read_cifar10(root, with_val=with_val)
        classes, notes = records.classes, ()
        train = Split(labels=records.train_labels, images=records.train_images)
        val = Split(labels=records.val_labels, images=records.val_images)
    else:
        folder = read_image_folder(root, with_val=with_val, kind=data.kind, val_labels=data.val_labels)
        if data.on_bad_file == "fail" and folder.no_files:
            raise DataError(_no_files(folder.no_files))
        classes, notes = folder.classes, folder.notes
        train = Split(folder.train_paths, _labels(folder.train_counts))
        val = Split(folder.val_paths, _labels(folder.val_counts))
    found = Counts(len(train.labels), len(val.labels), len(classes))
    if problems := _compare(config, found, root):
        raise DataError(problems)
    if not with_val:
        held = hold_out(train.labels, data.holdout_frac)
        val, train = train.part(np.flatnonzero(held)), train.part(np.flatnonzero(~held))
    skipped: tuple[tuple[str, str], ...] = ()
    if data.on_bad_file == "skip" and data.kind != "cifar10":
        read = Split() if val_only else train
        read, val, skipped = _leave_out_bad_files(root, classes, read, val, first_of_machine=local_rank == 0)
        train = train if val_only else read
        notes += _skipped_notes(skipped, len(read.paths) + len(val.paths) + len(skipped))
    counts = Counts(len(train.labels), len(val.labels), len(classes))
    return Scan(root, classes, train, val, "scan", counts, notes, skipped)


def _no_files(paths: Sequence[str]) -> list[Problem]:
    """Named like images, but no back end could read them to an end."""
    shown = [f"{_printable(path)}: {what_instead(path)}" for path in sorted(paths)[:MAX_NAMED]]
    rest = len(paths) - MAX_NAMED
    problems = [Problem(what, "remove it, or data.on_bad_file=skip") for what in shown]
    return problems if rest <= 0 else [*problems, Problem(f"and {rest} more that are no files")]


def _leave_out_bad_files(
    root: str, classes: Sequence[str], train: Split, val: Split, *, first_of_machine: bool
) -> tuple[Split, Split, tuple[tuple[str, str], ...]]:
    """Both splits without the files that cannot be decoded, and these with their reasons.

    Raises:
        DataError: A class would be left without an image in one of the splits.
    """
    from fasttrain.data.screening import screen

    paths = [*train.paths, *val.paths]
    bad = screen(paths, root, first_of_machine=first_of_machine)
    num_train = len(train.paths)
    of_train = {row: reason for row, reason in bad if row < num_train}
    of_val = {row - num_train: reason for row, reason in bad if row >= num_train}
    problems = [*_emptied("training", train, of_train, classes), *_emptied("validation", val, of_val, classes)]
    if problems:
        raise DataError(problems)
    named = tuple((_printable(paths[row]), reason) for row, reason in bad)
    return _without(train, of_train), _without(val, of_val), named


def _printable(path: str) -> str:
    """A path as text that can be written: a name in another encoding than UTF-8 shows its bytes."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def _without(split: Split, bad: dict[int, str]) -> Split:
    return split.part(np.setdiff1d(np.arange(len(split.labels)), np.fromiter(bad, dtype=np.int64)))


def _emptied(name: str, split: Split, bad: dict[int, str], classes: Sequence[str]) -> list[Problem]:
    """The problem of classes all of whose images are bad: their ids would stand for nothing."""
    before, after = (np.bincount(s.labels, minlength=len(classes)) for s in (split, _without(split, bad)))
    emptied = np.flatnonzero((before > 0) & (after == 0)).tolist()
    if not emptied:
        return []
    row = next(row for row in bad if split.labels[row] == emptied[0])
    names = ", ".join(classes[label] for label in emptied[:MAX_NAMED]) + (", ..." if len(emptied) > MAX_NAMED else "")
    what = f"data.on_bad_file=skip would leave no {name} image in {len(emptied)} classes ({names})"
    return [
        Problem(
            f"{what}, e.g. {_printable(split.paths[row])}: {bad[row]}",
            "get these files again from the data set's archive",
        )
    ]


def _skipped_notes(skipped: Sequence[tuple[str, str]], num_files: int) -> tuple[str, ...]:
    if not skipped:
        return (f"data.on_bad_file=skip: all {num_files:,} files can be decoded",)
    named = "".join(f"\n  {path}: {reason}" for path, reason in skipped[:MAX_NAMED])
    rest = f"\n  and {len(skipped) - MAX_NAMED} more" if len(skipped) > MAX_NAMED else ""
    what = f"{len(skipped):,} of {num_files:,} files cannot be decoded and are left out"
    return (f"data.on_bad_file=skip: {what} (all are in the run's skipped_files.tsv):{named}{rest}",)


def hold_out(labels: NDArray[np.int64], frac: float) -> NDArray[np.bool_]:
    """Which training images are validated on instead: the same share of every class, the same for every seed.

    Args:
        labels: Class ids, int64 [n].
        frac: Share to hold out; of each class at least one image and never all.

    Returns:
        bool [n].
    """
    order = np.random.Philox(key=HOLDOUT_KEY).random_raw(len(labels))
    held = np.zeros(len(labels), dtype=np.bool_)
    by_class = np.lexsort((order, labels))
    starts = np.flatnonzero(np.diff(labels[by_class], prepend=-1))
    for rows in np.split(by_class, starts[1:]):
        held[rows[: min(max(1, round(len(rows) * frac)), len(rows) - 1)]] = True
    return held


def _labels(counts: Sequence[int]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def _expected(config: RunConfig, root: str) -> Scan:
    data = config.data
    gone = bool(root) and data.backend != "synthetic"
    if problems := no_counts(data):
        raise DataError(_no_folder(config, root) if gone else problems)
    assert data.num_train is not None
    assert data.num_classes is not None
    train, val = data.num_train, data.num_val or 0
    if problems := _compare(config, Counts(train, val, data.num_classes), root):
        raise DataError(problems)
    if data.holdout_frac:
        val = min(max(1, round(train * data.holdout_frac)), train - 1)
        train -= val
    counts = Counts(train, val, data.num_classes)
    notes = (f"data.root={root} does not exist; the recipe's counts are used",) if gone else ()
    return Scan(root, (), Split(), Split(), "expected", counts, notes)


def _no_folder(config: RunConfig, root: str) -> list[Problem]:
    """What is wrong with a ``data.root`` that is not there, as a run that needs its images says it."""
    data = config.data
    if data.kind == "cifar10":
        return [missing_files(root, [])]
    problem = find_layout_problem(root, with_val=data.holdout_frac == 0, kind=data.kind)
    return [problem] if problem else []


def _compare(config: RunConfig, found: Counts, root: str) -> list[Problem]:
    """What the images have other than the config expects; counts of the splits before holding out."""
    data, problems = config.data, []
    pairs = [("data.num_train", data.num_train, found.train, "training images")]
    if data.holdout_frac == 0:
        pairs.append(("data.num_val", data.num_val, found.val, "validation images"))
    pairs.append(("data.num_classes", data.num_classes, found.classes, "classes"))
    for key, expected, count, what in pairs:
        if expected is not None and expected != count:
            fix = f"complete the set, or {key}={count} if this is the one you mean"
            problems.append(Problem(f"{key}={expected}, but {root} has {count} {what}", fix))
    wanted = config.model.num_classes
    if wanted is not None and wanted != found.classes:
        what = f"data has {found.classes} classes, model.num_classes={wanted}"
        problems.append(Problem(what, f"model.num_classes={found.classes}, or null to take the data's"))
    return problems
