"""The folder of a saved cache, which runs on several hosts may share: whether it can be written to, what was left over.

A file that is being written has a temporary name, which tells the host and process, and a lock on it. A process that is
killed leaves the file behind, but not the lock.
"""

from __future__ import annotations

import logging
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import IO

from fasttrain.errors import MachineError, Problem

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("fasttrain")

SUFFIX = ".squares"
# Locks may not be seen between hosts, so what another one was writing is taken for left over only after this time
# without a change: a file of the cache is written in minutes.
LEFT_OVER_AFTER_S = 24 * 3600


def check_writable(folder: Path) -> None:
    """Make the folder, and in it a file that is gone at once.

    Raises:
        MachineError: That is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        is_file = isinstance(error, FileExistsError)
        reason = "it is a file, expected a folder" if is_file else f"it cannot be written to: {error.strerror}"
        fix = "data.cache_dir=PATH of a folder that can be written to, or data.cache_dir=null to save nothing"
        raise MachineError(Problem(f"data.cache_dir={folder}: {reason}", fix)) from error


def temporary_name(file: Path) -> Path:
    """Name of a file while this process writes it."""
    return file.with_name(f".{file.name}.{platform.node()}.{os.getpid()}")


def lock(opened: IO[bytes]) -> bool | None:
    """Show the other processes that a file is being written, until it is closed.

    Returns:
        Whether the lock was free; None where there are none, as on some network file systems.
    """
    try:
        if fcntl is None:
            return None
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_left_over(folder: Path) -> None:
    """Remove the temporary files that nobody is writing any more.

    Those of this host go at once, as its locks are known; those of others, and where there are no locks, after
    ``LEFT_OVER_AFTER_S``. If one is removed in error, its writer reports that it could not be saved.
    """
    for file in folder.glob(f".*{SUFFIX}.*"):
        try:
            if _is_left_over(file):
                file.unlink()
                log.info(f"cache: removed {file}, which a process that was ended had left")
        except FileNotFoundError:  # another rank was faster, or it has got its own name
            continue
        except OSError as error:
            log.warning(f"{file}: left by a process that was ended, and cannot be removed: {error.strerror}")


def _is_left_over(file: Path) -> bool:
    host = file.name.rpartition(".")[0].rpartition(f"{SUFFIX}.")[2]
    # For writing: network file systems give an exclusive lock for nothing less.
    with file.open("r+b") as opened:
        seconds = time.time() - os.fstat(opened.fileno()).st_mtime
        free = lock(opened)
    if free and host == platform.node():
        return True
    return free is not False and seconds > LEFT_OVER_AFTER_S
