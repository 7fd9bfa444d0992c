"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Put ``text`` at ``path``; a process killed meanwhile leaves the old file. Makes missing folders.

    Raises:
        OSError: The folder cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Put a document of plain types at ``path``.

    Raises:
        ValueError: A number in it is not finite, which JSON cannot say.
    """
    write_text(path, json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
