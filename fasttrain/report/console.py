"""Where the program's words go: the terminal, and train.log in the run's folder."""

from __future__ import annotations

import logging
import os
import select
import sys
from pathlib import Path
from typing import TextIO

log = logging.getLogger("fasttrain")


class _CurrentStdout(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stdout`` is at the time, so that a progress bar can step aside."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stdout

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A reader that has left (``| head``) is no error: train.log has the line."""
        if reader_has_gone():
            silence_stdout()
        else:
            super().handleError(record)


def reader_has_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no poll on this system, no file behind stdout
        return False


def silence_stdout() -> None:
    """Send what is still to be printed to nowhere, what Python flushes when it exits included."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _EachLine(logging.Formatter):
    """Puts a prefix before every line of a message."""

    def __init__(self, prefix: str) -> None:
        super().__init__("%(message)s")
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(self._prefix + line for line in super().format(record).split("\n"))


def configure_logging(run_dir: Path | None, rank: int) -> None:
    """Send this run's lines to the terminal and, on rank 0, to ``run_dir/train.log``.

    Other ranks speak only of what is wrong, with their number in front. Library warnings go to the file alone.

    Args:
        run_dir: None where there is no folder to write to.
        rank: Of this process.
    """
    for name in ("fasttrain", "pytorch_lightning", "lightning_fabric", "py.warnings"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = False
    terminal = _CurrentStdout()
    terminal.setFormatter(_EachLine("" if rank == 0 else f"[rank {rank}] "))
    log.addHandler(terminal)
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    logging.captureWarnings(True)
    if rank == 0 and run_dir is not None:
        file = logging.FileHandler(run_dir / "train.log", encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        for name in ("fasttrain", "pytorch_lightning", "lightning_fabric", "py.warnings"):
            logging.getLogger(name).addHandler(file)
    else:
        for name in ("pytorch_lightning", "lightning_fabric", "py.warnings"):
            logging.getLogger(name).addHandler(logging.NullHandler())
