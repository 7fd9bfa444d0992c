"""Plain values as YAML text that a person reads: one setting a line, a row of the stage table a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_COMMENT_COLUMN = 40


def flow(value: Any) -> str:
    """A value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return text.strip().removesuffix("...").strip()


def to_yaml(values: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Nested settings as YAML, each with the comment that ``comments`` has for its dotted key."""
    return "\n".join(_lines(values, "", comments or {})) + "\n"


def _lines(values: Mapping[str, Any], prefix: str, comments: Mapping[str, str]) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, value in values.items():
        key, comment = f"{prefix}{name}", comments.get(f"{prefix}{name}", "")
        start = f"{indent}{flow(name)}:"
        if isinstance(value, Mapping) and value:
            yield _commented(start, comment)
            yield from _lines(value, f"{key}.", comments)
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            yield _commented(start, comment)
            for index, row in enumerate(value):
                yield _commented(f"{indent}  - {flow(row)}", comments.get(f"{key}.{index}", ""))
        else:
            yield _commented(f"{start} {flow(value)}", comment)


def _commented(line: str, comment: str) -> str:
    return f"{line:{_COMMENT_COLUMN}} # {comment}" if comment else line
