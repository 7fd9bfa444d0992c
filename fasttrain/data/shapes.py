"""The images that come with the project, made on first use.

Layout: ``ROOT/{train,val}/CLASS/NNNN.jpg`` and ``ROOT/shapes.json``, which says what made it. Image number i
of a split has class i modulo 16 and is drawn from its own random generator, seeded by (seed, split, i), so
the number of processes that draw decides nothing. The whole set is written beside ROOT and renamed: ROOT is
complete or absent, whatever is killed when.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, fields
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from fasttrain.data.shape_drawing import CLASSES, draw_shape
from fasttrain.errors import ConfigError, DataError, Problem
from fasttrain.regular_file import require_regular_file

FINGERPRINT = "shapes.json"
GENERATOR = 1  # raised with every change of the pictures; a set of another number is refused
JPEG_QUALITY = 90
SPLITS = ("train", "val")
MAX_WORKERS = 8
STALE_SECONDS = 3600  # an unfinished set untouched for this long belongs to a process that was killed


@dataclass(frozen=True)
class Spec:
    """What decides every byte of a set, but for the versions of numpy and of the JPEG library.

    Attributes:
        num_train, num_val: Images of each split, dealt to the classes in turn.
        px: Side of the square images, pixels.
    """

    num_train: int
    num_val: int
    px: int
    seed: int
    generator: int = GENERATOR

    def num_images(self, split: str) -> int:
        """Images of one split."""
        return self.num_train if split == "train" else self.num_val


def ensure_shapes(
    root: str | Path,
    *,
    num_train: int | None = None,
    num_val: int | None = None,
    px: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
) -> bool:
    """Make the set if it is missing; if it is there, check it as ``check_shapes`` does.

    Takes and raises what ``make_shapes`` does. None is its default where the set is made now, and anything
    where it is there.

    Returns:
        Whether it was made now.
    """
    wanted = {"num_train": num_train, "num_val": num_val, "px": px, "seed": seed}
    given = {key: value for key, value in wanted.items() if value is not None}
    if _is_missing(Path(root)):
        make_shapes(root, workers=workers, **given)
        return True
    check_shapes(root, **given)
    return False


def check_shapes(root: str | Path, **wanted: int) -> Spec:
    """Check that a set is whole and made by this version of the generator.

    Args:
        root: Folder of the set.
        wanted: Fields of ``Spec`` that it must have.

    Returns:
        What it was made with.

    Raises:
        DataError: ``root`` holds nothing, something else, another kind or a part of a set.
    """
    root = Path(root)
    found = _read_fingerprint(root)
    if found is None:
        here = f"there is no {FINGERPRINT} in it" if root.is_dir() else "no such folder"
        what = f"data.root={root}: not a set of shapes that fasttrain made ({here})"
        raise DataError(Problem(what, "data.root=data/shapes, or another folder that is absent or empty"))
    fix = f"rm -r {root}    # the next run makes it again, or: fasttrain prepare shapes --root {root}"
    wanted = {"generator": GENERATOR, **wanted}
    differing = [key for key, value in wanted.items() if getattr(found, key) != value]
    if differing:
        values = ", ".join(f"{key} {getattr(found, key)}, expected {wanted[key]}" for key in differing)
        raise DataError(Problem(f"data.root={root}: another set of shapes: {values}", fix))
    wrong = []
    for split in SPLITS:
        for label, name in enumerate(CLASSES):
            expected = len(range(label, found.num_images(split), len(CLASSES)))
            num_found = len(list((root / split / name).glob("*.jpg")))
            if num_found != expected:
                wrong.append(f"{split}/{name} has {num_found} images, expected {expected}")
    if wrong:
        more = f"; and {len(wrong) - 3} more folders" if len(wrong) > 3 else ""
        raise DataError(Problem(f"data.root={root}: incomplete: {'; '.join(wrong[:3])}{more}", fix))
    return found


def make_shapes(
    root: str | Path,
    *,
    num_train: int = 3200,
    num_val: int = 800,
    px: int = 160,
    seed: int = 0,
    workers: int | None = None,
) -> None:
    """Draw a set and put it at ``root`` in one step; a whole set of the same kind is left as it is.

    Two processes that make the same set at once both succeed: the first to finish gives its own the name,
    the other throws its away.

    Args:
        root: Folder of the set.
        num_train: Training images, at least one a class.
        num_val: Validation images, at least one a class.
        px: Side of the square images, pixels.
        seed: Of all pictures.
        workers: Processes that draw; None: as many as there are cores, up to 8.

    Raises:
        ConfigError: Fewer images than classes.
        DataError: ``root`` holds something else, another kind or a part of a set, or cannot be written.
    """
    root = Path(root)
    spec = Spec(num_train, num_val, px, seed)
    if min(num_train, num_val) < len(CLASSES):
        what = f"data.num_train={num_train} data.num_val={num_val}: shapes has {len(CLASSES)} classes"
        fix = f"data.num_train={max(num_train, len(CLASSES))} data.num_val={max(num_val, len(CLASSES))}"
        raise ConfigError(Problem(what, fix))
    if not _is_missing(root):
        check_shapes(root, **asdict(spec))
        return
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(root)
        part = Path(tempfile.mkdtemp(prefix=f".{root.name}-", suffix=".part", dir=root.parent))
        try:
            _write_set(part, spec, _num_workers(workers))
            _publish(part, root, spec)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        what = f"data.root={root}: the shapes cannot be written there: {error.strerror or error}"
        fix = "data.root=PATH of a folder that can be written, with 50 MB to spare"
        raise DataError(Problem(what, fix)) from error


def _write_set(part: Path, spec: Spec, workers: int) -> None:
    """Write all files of a set into ``part``, an existing folder, with ``workers`` processes."""
    for split in SPLITS:
        for name in CLASSES:
            (part / split / name).mkdir(parents=True)
    helpers = [_start_helper(part, spec, share, workers) for share in range(1, workers)]
    try:
        _write_share(part, spec, 0, workers)
        for share, helper in enumerate(helpers, start=1):
            if helper is not None:
                helper.join()
            if helper is None or helper.exitcode != 0:
                # No processes on this machine, or this one failed. Its share is drawn here, where a lasting
                # cause (a full disk) raises the true error.
                _write_share(part, spec, share, workers)
    finally:
        for helper in helpers:
            if helper is not None:
                helper.terminate()
                helper.join()
    (part / FINGERPRINT).write_text(json.dumps({**asdict(spec), "classes": CLASSES}, indent=2) + "\n")
    part.chmod(0o755)  # mkdtemp makes folders that only their owner can read


def _start_helper(part: Path, spec: Spec, share: int, num_shares: int) -> BaseProcess | None:
    """Start a process for one share; None where processes cannot be started.

    RuntimeError is not caught: it is what stops a spawned copy of a main module without a guard.
    """
    try:
        process = multiprocessing.Process(target=_help, args=(part, spec, share, num_shares), daemon=True)
        process.start()
    except (ImportError, OSError, AssertionError):  # AssertionError: this process is itself daemonic
        return None
    return process


def _help(part: Path, spec: Spec, share: int, num_shares: int) -> None:
    """Body of a helper process: quiet on Ctrl-C and on errors, which its parent meets and reports."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _write_share(part, spec, share, num_shares)
    except OSError:
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _write_share(part: Path, spec: Spec, share: int, num_shares: int) -> None:
    """Write the images whose number is ``share`` modulo ``num_shares``, of both splits."""
    from PIL import Image

    for split_id, split in enumerate(SPLITS):
        for index in range(share, spec.num_images(split), num_shares):
            label, number = index % len(CLASSES), index // len(CLASSES)
            rng = np.random.default_rng((spec.seed, split_id, index))
            image = Image.fromarray(draw_shape(label, rng, spec.px))
            image.save(part / split / CLASSES[label] / f"{number:04d}.jpg", quality=JPEG_QUALITY)


def _publish(part: Path, root: Path, spec: Spec) -> None:
    """Give the finished set its name, unless another process has just put an equal one there."""
    try:
        if root.is_dir():
            root.rmdir()  # an empty one: not every system renames over it
        part.rename(root)
    except OSError:
        if _is_missing(root):
            raise
        check_shapes(root, **asdict(spec))


def _read_fingerprint(root: Path) -> Spec | None:
    """What the set at ``root`` was made with; None where nothing says so."""
    try:
        require_regular_file(root / FINGERPRINT)
        found = json.loads((root / FINGERPRINT).read_text())
        return Spec(**{field.name: int(found[field.name]) for field in fields(Spec)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_missing(root: Path) -> bool:
    """Whether ``root`` is absent or an empty folder."""
    return not root.exists() or (root.is_dir() and not any(root.iterdir()))


def _remove_stale(root: Path) -> None:
    """Remove what killed processes left beside ``root``, but nothing that may still be written."""
    for part in root.parent.glob(f".{root.name}-*.part"):
        if time.time() - part.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(part, ignore_errors=True)


def _num_workers(workers: int | None) -> int:
    if workers is not None:
        return max(1, workers)
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux only
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, MAX_WORKERS)
