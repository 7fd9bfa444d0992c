"""How the benchmarks read their flags: all that is wrong is told at once, in the program's words. Imports no torch."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fasttrain.errors import ConfigError, MachineError, Problem

COMMAND_LINE = "command line"


class FlagParser(argparse.ArgumentParser):
    """Says what is wrong as the rest of the program does."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(Problem(message, f"{self.prog} --help", COMMAND_LINE))


class FlagReader:
    """Turns texts of flags into values and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def count(self, flag: str, text: str, *, ge: int, le: int, example: int) -> int:
        """A whole number."""
        if text.isdecimal() and ge <= int(text) <= le:
            return int(text)
        self._wrong(flag, text, f"a whole number, {ge} to {le}", str(example))
        return example

    def counts(self, flag: str, text: str, *, ge: int, le: int, example: str) -> tuple[int, ...]:
        """Whole numbers between commas, each once."""
        words = text.split(",")
        if all(word.isdecimal() and ge <= int(word) <= le for word in words):
            return tuple(dict.fromkeys(int(word) for word in words))
        self._wrong(flag, text, f"whole numbers between commas, {ge} to {le}", example)
        return ()

    def positive(self, flag: str, text: str, *, le: float, example: str) -> float:
        """A number above zero."""
        value = _float(text)
        if value is not None and 0 < value <= le:
            return value
        self._wrong(flag, text, f"a number above 0, at most {le:g}", example)
        return float(example)

    def choices(self, flag: str, text: str | None, known: Sequence[str]) -> tuple[str, ...]:
        """Some of ``known`` between commas, each once; none for None."""
        if text is None:
            return ()
        words = tuple(dict.fromkeys(text.split(",")))
        wrong = [word for word in words if word not in known]
        if wrong:
            close = difflib.get_close_matches(wrong[0], known, n=1)
            self._wrong(flag, text, f"some of {','.join(known)}", close[0] if close else ",".join(known))
        return words

    def need(self, flag: str, text: str) -> str | tuple[float, ...]:
        """``measure``, ``none`` or rates."""
        if text in ("measure", "none"):
            return text
        values = [_float(word) for word in text.split(",")]
        rates = tuple(value for value in values if value is not None and value > 0)
        if len(rates) < len(values):
            self._wrong(flag, text, "measure, none, or images/s between commas, one for each px", "measure")
        return rates

    def json(self, path: Path | None, *, example: str = "bench.json") -> Path | None:
        """Where the record goes; a folder is refused before anything is measured."""
        if path is not None and path.is_dir():
            raise MachineError(Problem(f"--json {path}: a folder, expected a file", f"--json {path}/{example}"))
        return path

    def done(self) -> None:
        """End the reading.

        Raises:
            ConfigError: With all that was found.
        """
        if self.problems:
            raise ConfigError(self.problems)

    def _wrong(self, flag: str, text: str, wanted: str, example: str) -> None:
        self.problems.append(Problem(f"{flag} {text}: expected {wanted}", f"{flag} {example}", COMMAND_LINE))


def parse(parser: FlagParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, FlagReader]:
    """The texts of the flags, and a reader for them; words without a flag become ``settings``, wherever they stand.

    Raises:
        ConfigError: Flags that the parser does not have.
    """
    given, unknown = parser.parse_known_intermixed_args(list(arguments))
    reader = FlagReader()
    flags = [option for action in parser._actions for option in action.option_strings]
    for word in unknown:
        if word.startswith("-"):
            close = difflib.get_close_matches(word.partition("=")[0], flags, n=1)
            fix = f"did you mean {close[0]}?" if close else f"{parser.prog} --help"
            reader.problems.append(Problem(f"{word}: there is no such flag", fix, COMMAND_LINE))
        else:
            given.settings.append(word)
    reader.done()
    return given, reader


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
