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

# Of the generator that chooses the held-out images: the same ones for every seed of a run.
HOLDOUT_KEY = 0x686F6C64


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
        counts: Of what is trained and validated on: after holding out.
        notes: What was passed over, a line each.
    """

    root: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    source: Literal["scan", "expected"]
    counts: Counts
    notes: tuple[str, ...] = ()

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


def scan(config: RunConfig) -> Scan:
    """List the images of the run, or take the counts that the config expects.

    Raises:
        DataError: Layout, labels or counts that do not fit, each with its fix.
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
        folder = read_image_folder(root, with_val=with_val, kind=data.kind)
        classes, notes = folder.classes, folder.notes
        train = Split(folder.train_paths, _labels(folder.train_counts))
        val = Split(folder.val_paths, _labels(folder.val_counts))
    found = Counts(len(train.labels), len(val.labels), len(classes))
    if problems := _compare(config, found, root):
        raise DataError(problems)
    if not with_val:
        held = hold_out(train.labels, data.holdout_frac)
        val, train = train.part(np.flatnonzero(held)), train.part(np.flatnonzero(~held))
    counts = Counts(len(train.labels), len(val.labels), len(classes))
    return Scan(root, classes, train, val, "scan", counts, notes)


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
