"""A small reader of MATLAB's MAT-files of version 5, for ImageNet's meta.mat; nothing else here comes in that format.

Source: "MAT-File Format", The MathWorks, R2023b, chapter 1 (level 5).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

HEADER_BYTES = 128
# Types of data elements (table 1-1) as numpy's, without their byte order.
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
MATRIX, COMPRESSED, UTF8, UTF16 = 14, 15, 16, 17
# Classes of arrays (table 1-3).
CELL, STRUCT, CHAR = 1, 2, 4
NUMERIC = range(6, 16)  # double, single and the integers


class MatError(ValueError):
    """Not a MAT-file of version 5, cut off, or with something in it that this reader does not know."""


def read_mat5(content: bytes) -> dict[str, Any]:
    """The variables of a file.

    Args:
        content: Of the whole file.

    Returns:
        Name to value. Numbers are flat lists in the order of columns, text is a str, cells are lists, an array of
        structs is a list of dicts.

    Raises:
        MatError: It cannot be read.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:HEADER_BYTES])
    if order is None:
        raise MatError("it does not start as a MAT-file of version 5 does")
    variables = {}
    for kind, data in _elements(content[HEADER_BYTES:], order):
        if kind == COMPRESSED:
            try:
                data = zlib.decompress(data)
            except zlib.error as error:
                raise MatError("a compressed part of it is damaged") from error
            ((kind, data),) = _elements(data, order)
        if kind == MATRIX:
            name, value = _matrix(data, order)
            variables[name] = value
    return variables


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Type and content of each data element."""
    place = 0
    while place < len(data):
        tag = data[place : place + 8]
        if len(tag) < 8:
            raise MatError("it is cut off")
        kind, size = (int(number) for number in np.frombuffer(tag, dtype=f"{order}u4"))
        if kind >> 16:  # a small element: up to four bytes, in the tag itself
            kind, size = kind & 0xFFFF, kind >> 16
            if size > 4:
                raise MatError("an element in it has an impossible size")
            yield kind, tag[4 : 4 + size]
            place += 8
            continue
        content = data[place + 8 : place + 8 + size]
        if len(content) < size:
            raise MatError("it is cut off")
        yield kind, content
        place += 8 + size + (0 if kind == COMPRESSED else -size % 8)


def _matrix(data: bytes, order: str) -> tuple[str, Any]:
    """Name and value of an array."""
    elements = list(_elements(data, order))
    if not elements:
        return "", []
    if len(elements) < 3:
        raise MatError("an array in it has no name")
    flags, _, name, *parts = elements
    kind = int(_numbers(*flags, order)[0]) & 0xFF
    value: Any
    if kind == STRUCT:
        value = _structs(parts, order)
    elif kind == CELL:
        value = [_matrix(content, order)[1] for _, content in parts]
    elif kind == CHAR:
        value = _text(*parts[0], order) if parts else ""
    elif kind in NUMERIC:
        value = _numbers(*parts[0], order) if parts else []
    else:
        raise MatError(f"it holds an array of class {kind}, which is not read here")
    return name[1].decode("ascii", errors="replace"), value


def _structs(parts: list[tuple[int, bytes]], order: str) -> list[dict[str, Any]]:
    """The elements of an array of structs: all fields of the first one, then all of the second, ..."""
    if len(parts) < 2:
        raise MatError("a struct in it has no fields")
    (length,) = (int(number) for number in _numbers(*parts[0], order))
    text = parts[1][1].decode("ascii", errors="replace")
    names = [text[start : start + length].rstrip("\0") for start in range(0, len(text), length)]
    values = [_matrix(content, order)[1] for _, content in parts[2:]]
    if not names or len(values) % len(names):
        raise MatError("a struct in it lacks a field")
    return [
        dict(zip(names, values[start : start + len(names)], strict=True)) for start in range(0, len(values), len(names))
    ]


def _numbers(kind: int, data: bytes, order: str) -> list[Any]:
    if kind not in NUMBERS or len(data) % np.dtype(NUMBERS[kind]).itemsize:
        raise MatError(f"it holds numbers of type {kind}, which are not read here")
    return list(np.frombuffer(data, dtype=order + NUMBERS[kind]).tolist())


def _text(kind: int, data: bytes, order: str) -> str:
    if kind == UTF8:
        return data.decode("utf-8", errors="replace")
    if kind == UTF16:
        return data.decode("utf-16-le" if order == "<" else "utf-16-be", errors="replace")
    return "".join(map(chr, _numbers(kind, data, order)))
