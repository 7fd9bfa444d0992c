"""Where the program's words go: the terminal, and train.log in the run's folder."""

from __future__ import annotations

import logging
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
    terminal.setFormatter(logging.Formatter("%(message)s" if rank == 0 else f"[rank {rank}] %(message)s"))
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
