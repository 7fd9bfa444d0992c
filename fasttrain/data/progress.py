"""How far something is that takes minutes: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

# Between two lines where nobody watches a bar.
LINE_SECONDS = 30.0


class Progress:
    """Counts up to a total, on stderr; says nothing where all is done before the first line is due.

    Args:
        what: What is going on, e.g. ``unpacking ILSVRC2012_img_val.tar``.
        total: How much there is to do.
        unit: Of ``total``: ``files``, or ``bytes``, which are shown in larger units on a terminal.
    """

    def __init__(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._done = 0
        self._next_line = time.monotonic() + LINE_SECONDS
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            count = DownloadColumn() if self._unit == "bytes" else MofNCompleteColumn()
            columns = TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn()
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            self._bar.add_task(self._what, total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, amount: int) -> None:
        """Count ``amount`` more as done."""
        self._done += amount
        if self._bar:
            self._bar.advance(self._bar.task_ids[0], amount)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            print(f"{self._what}: {self._done:,} of {self._total:,} {self._unit}", file=sys.stderr, flush=True)
