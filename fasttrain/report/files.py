"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fasttrain.errors import MachineError, Problem
from fasttrain.regular_file import what_instead


def write_text(path: Path, text: str) -> None:
    """Put ``text`` at ``path``; a process killed meanwhile leaves the old file. Makes missing folders.

    Raises:
        MachineError: The folder cannot be written to, or the disk is full.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(text, encoding="utf-8", newline="\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Put a document of plain types at ``path``.

    Raises:
        ValueError: A number in it is not finite, which JSON cannot say.
        MachineError: As for ``write_text``.
    """
    write_text(path, json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def require_writable(path: Path, flag: str) -> None:
    """See that a file can be written at ``path`` before the work that it shall hold is done; leaves nothing there.

    Args:
        path: Of the file; its folder need not be there yet.
        flag: That names it, for the error.

    Raises:
        MachineError: A folder or a device lies there, or the folder cannot be written to.
    """
    try:
        if path.is_dir():
            raise MachineError(Problem(f"{flag} {path}: a folder, expected a file", f"{flag} {path / 'figures'}"))
        if path.exists() and (wrong := what_instead(path)):
            raise MachineError(Problem(f"{flag} {path}: {wrong}", f"{flag} PATH of a file"))
        folder = next(folder for folder in path.absolute().parents if folder.exists())
        probe = folder / f".{path.name}.{os.getpid()}.partial"
        try:
            probe.touch()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        what = f"{flag} {path} cannot be written: {error.strerror or error}"
        raise MachineError(Problem(what, f"{flag} PATH in a folder of yours")) from error


def cannot_write(path: Path, error: OSError) -> MachineError:
    """The error to raise where ``path`` could not be written."""
    return MachineError(
        Problem(
            f"{path} cannot be written: {error.strerror or error}",
            "make room there or correct the folder's permissions; what was written before is intact",
        )
    )
