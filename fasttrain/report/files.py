"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fasttrain.errors import MachineError, Problem


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


def cannot_write(path: Path, error: OSError) -> MachineError:
    """The error to raise where ``path`` could not be written."""
    return MachineError(
        Problem(
            f"{path} cannot be written: {error.strerror or error}",
            "make room there or correct the folder's permissions; what was written before is intact",
        )
    )
