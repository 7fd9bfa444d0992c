"""Every file decoded once before a run, so that the bad ones are no part of its plan (``data.on_bad_file=skip``).

What is found is kept in a file of the user's cache folder, by path, size and times of change of each image: the next
run looks only at files that are new or changed. Imports no torch.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path

import PIL

from fasttrain.data.image_file import FILE_ERRORS, why_bad
from fasttrain.data.progress import Progress
from fasttrain.errors import DataError, MachineError, Problem

# The first line of a file of verdicts; another rule or another Pillow could judge otherwise.
HEADER = f"fasttrain verdicts 2, Pillow {PIL.__version__}"
# Files of one task: enough to spare the threads' bookkeeping, few enough to be saved often.
FILES_PER_TASK = 64
# Between two savings; what a killed process has found until then is not looked for again.
SAVE_SECONDS = 10.0
# How long the other ranks of a machine wait without the verdicts growing.
WAIT_SECONDS = 300.0


def screen(paths: Sequence[str], root: str, *, first_of_machine: bool) -> list[tuple[int, str]]:
    """Decode all files that have no verdict yet.

    Args:
        paths: Absolute, all below ``root``.
        root: Of the data set; names the file of verdicts.
        first_of_machine: Whether this process decodes; the others of the machine wait for its verdicts.

    Returns:
        Places in ``paths`` of the bad files, ascending, each with the reason.

    Raises:
        DataError: A disk or mount failed.
        MachineError: The verdicts cannot be written, or do not come.
    """
    book = verdicts_file(root)
    keys, unreadable = _keys(paths, root)
    if first_of_machine:
        verdicts = _judge(paths, keys, book)
    else:
        verdicts = _wait_for(set(keys) - {""}, book)
    bad = {row: verdicts[key] for row, key in enumerate(keys) if key and verdicts[key]} | unreadable
    return sorted(bad.items())


def verdicts_file(root: str) -> Path:
    """Where the verdicts about a data set are kept: in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "fasttrain" / f"verdicts-{hashlib.blake2b(os.fsencode(root), digest_size=8).hexdigest()}.tsv"


def _keys(paths: Sequence[str], root: str) -> tuple[list[str], dict[int, str]]:
    """A key for each file, other as soon as the file is; "" and a reason for those that have no size or times."""

    def of_some(rows: range) -> list[tuple[str, str]]:
        return [_key(paths[row], root) for row in rows]

    tasks = [range(start, min(start + 1024, len(paths))) for start in range(0, len(paths), 1024)]
    with ThreadPoolExecutor(16) as threads:  # a network file system answers many at once
        found = [item for items in threads.map(of_some, tasks) for item in items]
    return [key for key, _ in found], {row: reason for row, (key, reason) in enumerate(found) if not key}


def _key(path: str, root: str) -> tuple[str, str]:
    try:
        stat = os.stat(path)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise DataError(
                Problem(f"{path} cannot be read: {error.strerror}", "see that its disk or mount works, then try again")
            ) from error
        return "", error.strerror or type(error).__name__
    # The time of the last change of the permissions too: a file may be unreadable for a while.
    text = f"{os.path.relpath(path, root)}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}"
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest(), ""


def _judge(paths: Sequence[str], keys: Sequence[str], book: Path) -> dict[str, str]:
    """All verdicts, "" for a good file: those of the book and new ones, which are added to it."""
    verdicts = _read(book)
    unknown = [row for row, key in enumerate(keys) if key and key not in verdicts]
    if not unknown:
        return verdicts

    def judge(rows: list[int]) -> dict[str, str]:
        return {keys[row]: " ".join((why_bad(paths[row]) or "").split()) for row in rows}

    workers = os.cpu_count() or 1
    rows = iter(unknown)
    tasks: Iterator[list[int]] = iter(lambda: list(islice(rows, FILES_PER_TASK)), [])
    last_saved = time.monotonic()
    with (
        Progress("looking for files that cannot be decoded", len(unknown), "files") as progress,
        ThreadPoolExecutor(workers, "screen") as threads,
    ):
        try:
            running: set[Future[dict[str, str]]] = {threads.submit(judge, task) for task in islice(tasks, 2 * workers)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    verdicts |= future.result()
                    progress.advance(len(future.result()))
                running |= {threads.submit(judge, task) for task in islice(tasks, len(done))}
                if time.monotonic() - last_saved > SAVE_SECONDS:
                    _write(book, verdicts)
                    last_saved = time.monotonic()
        finally:
            _write(book, verdicts)
    return verdicts


def _wait_for(keys: set[str], book: Path) -> dict[str, str]:
    """The verdicts about ``keys``, once another process has found them."""
    changed, deadline = None, time.monotonic() + WAIT_SECONDS
    while True:
        try:
            stamp = book.stat().st_mtime_ns
        except OSError:
            stamp = None
        if stamp != changed:
            changed, deadline = stamp, time.monotonic() + WAIT_SECONDS
            verdicts = _read(book)
            if keys <= verdicts.keys():
                return verdicts
        if not keys:
            return {}
        if time.monotonic() > deadline:
            raise MachineError(
                Problem(
                    f"data.on_bad_file=skip: {book} did not grow for {WAIT_SECONDS:g} s; the first rank of this "
                    "machine writes there which files can be decoded",
                    "look at that rank's log; all ranks of a machine need the same HOME or XDG_CACHE_HOME",
                )
            )
        time.sleep(0.2)


def _read(book: Path) -> dict[str, str]:
    """Key to reason, "" for good files; empty where there is no book that this version wrote."""
    try:
        # What follows the last line's end is a line that was cut off.
        header, *lines = book.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] or [""]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unusable(book, error) from error
    if header != HEADER:
        return {}
    pairs = (line.partition("\t") for line in lines)
    return {key: reason for key, _, reason in pairs}


def _write(book: Path, verdicts: dict[str, str]) -> None:
    """Put the verdicts at their place, whole or not at all."""
    partial = book.with_name(f".{book.name}.{os.getpid()}.partial")
    try:
        book.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(HEADER + "\n")
                file.writelines(f"{key}\t{reason}\n" for key, reason in verdicts.items())
            partial.replace(book)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(book, error) from error


def _unusable(book: Path, error: OSError) -> MachineError:
    return MachineError(
        Problem(
            f"data.on_bad_file=skip keeps what it finds in {book}, which cannot be used: {error.strerror or error}",
            "XDG_CACHE_HOME=/a/writable/folder in front of the command",
        )
    )
