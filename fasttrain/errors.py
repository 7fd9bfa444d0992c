"""The errors that end a run, each with the exit code that the process returns.

Codes: 0 done (a missed target too), 1 internal error, 2 config, 3 data, 4 environment, 5 training,
130 Ctrl-C, 143 terminated after saving.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

# Exit codes of a run that Ctrl-C, or SIGTERM and SIGUSR1, ended: 128 and the signal's number, SIGTERM's for both.
INTERRUPTED, TERMINATED = 130, 143
# What the system refuses for reasons that lie in the machine and its files, by number, and what to do about it.
REFUSALS = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f unlimited), or name a place that takes larger files",
    errno.EROFS: "name a place that can be written to",
    errno.EACCES: "see that you may use it (chmod, chown), or name another place",
    errno.EPERM: "see that you may use it (chmod, chown), or name another place",
    errno.EEXIST: "a file lies where a folder goes: move it away, or name another place",
    errno.ENOTDIR: "a file lies where a folder goes: move it away, or name another place",
    errno.EIO: "see that its disk or mount works",
    errno.ESTALE: "see that its disk or mount works",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs: the machine has no more open files",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in the user's words.

    Attributes:
        what: The value given and what was expected, e.g. ``optimizer.lr=abc: expected a number``.
        fix: A line to paste or one sentence that says what to do; empty where ``what`` says it.
        where: Where the value came from (``command line``, ``recipes/x.yaml``, a variable).
    """

    what: str
    fix: str = ""
    where: str = ""

    def __str__(self) -> str:
        text = f"{self.what} (from {self.where})" if self.where else self.what
        return f"{text}\n    fix: {self.fix}" if self.fix else text


def first_line(error: BaseException) -> str:
    """The first line of an exception's words, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class FasttrainError(Exception):
    """Base of every error that is the user's to mend; printed without a traceback.

    Args:
        problems: What is wrong; all that is known, not only the first.
    """

    exit_code = 1
    kind = "error"

    def __init__(self, problems: Problem | str | Sequence[Problem | str]) -> None:
        given = [problems] if isinstance(problems, (Problem, str)) else list(problems)
        self.problems = [p if isinstance(p, Problem) else Problem(p) for p in given]
        super().__init__(str(self))

    def __str__(self) -> str:
        return "\n".join(f"{self.kind}: {problem}" for problem in self.problems)


class ConfigError(FasttrainError):
    """A setting that cannot be run: key, type, range or combination."""

    exit_code = 2
    kind = "config error"


class DataError(FasttrainError):
    """Images, labels or folders that are missing, broken or do not fit the config."""

    exit_code = 3
    kind = "data error"


class MachineError(FasttrainError):
    """What the machine lacks: devices, driver, memory, disk, ports."""

    exit_code = 4
    kind = "environment error"


class DeviceLost(MachineError):
    """A GPU on which a program failed: this process can ask nothing more of it, not even to take its memory back."""


class TrainingError(FasttrainError):
    """A run that diverged or cannot be continued."""

    exit_code = 5
    kind = "training error"


class Stopped(FasttrainError):
    """A run that a signal ended after its state was saved.

    Args:
        message: What was saved and how to continue.
        exit_code: 130 for SIGINT, 143 for SIGTERM and SIGUSR1.
    """

    kind = "stopped"

    def __init__(self, message: str | Problem, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
