"""Start one process a rank on this machine, through torch's own elastic agent."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrain.errors import TERMINATED, FasttrainError, MachineError, Problem

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

# The variable by which the ranks that this program starts know it, and what else they must know (a Handover).
HANDOVER = "FASTTRAIN_HANDOVER"

# Signals that end a rank from outside, or by a fault below Python.
KILLERS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


@dataclass(frozen=True)
class Handover:
    """What the process that starts the ranks has decided for them.

    Attributes:
        config: The run's config as YAML, its folder and what it resumes from filled in.
        command: The command line as the user typed it.
        process_start: When the user's process began, seconds on time.monotonic's clock.
        overrides: Key, value and origin of each setting that was given.
    """

    config: str
    command: str
    process_start: float
    overrides: list[list[str]]


def handed_over(environ: Mapping[str, str] = os.environ) -> Handover | None:
    """What the process that started this rank left for it; None where a user's launcher started it."""
    text = environ.get(HANDOVER)
    return Handover(**json.loads(text)) if text else None


def rank_prefix(environ: Mapping[str, str] = os.environ) -> str:
    """``[rank 3] `` in front of what any rank but the first one says."""
    rank = environ.get("RANK", "0")
    return "" if rank == "0" else f"[rank {rank}] "


class RankFailed(FasttrainError):
    """A rank ended with an error; its own exit code becomes the run's.

    Args:
        message: The failed rank's own last words.
        exit_code: The failed rank's exit code.
    """

    kind = "error"

    def __init__(self, message: str, exit_code: int) -> None:
        self.message = message
        self.exit_code = exit_code
        super().__init__(Problem(message))

    def __str__(self) -> str:
        return self.message


def launch_ranks(num_ranks: int, handover: Handover) -> None:
    """Run ``python -m fasttrain rank`` once a rank and wait for all.

    The ranks find each other over a free port of this machine, so that two runs can start side by side.
    When one fails, the others are ended.

    Args:
        num_ranks: Processes to start.
        handover: What they run.

    Raises:
        RankFailed: With the exit code and the words of the rank that failed first.
        KeyboardInterrupt: The user pressed Ctrl-C; the ranks have saved and ended.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_ranks)))
    os.environ[HANDOVER] = json.dumps(asdict(handover))
    package_parent = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (package_parent, os.environ.get("PYTHONPATH", "")) if part
    )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    # The agent's own account of a failure would come after the failed rank's words.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "fasttrain", "rank")
    except ChildFailedError as error:
        # A rank that was killed can say nothing; what the others say then follows from it.
        killed = [(0, *_killed(rank, -f.exitcode)) for rank, f in error.failures.items() if -f.exitcode in KILLERS]
        failed = killed or [_last_words(rank, failure) for rank, failure in error.failures.items()]
        _, message, exit_code = min(failed)
        raise RankFailed(message, exit_code) from None
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        text = "stopped: terminated; resume=auto goes on from the newest checkpoint, where one was written"
        raise RankFailed(text, TERMINATED) from None
    finally:
        os.environ.pop(HANDOVER, None)


def end_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the launching process goes, so that a killed run leaves no ranks behind.

    Does nothing where the kernel is not Linux. Source: prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def leave_last_words(message: str, exit_code: int) -> None:
    """Write what a failing rank has to say where the launcher reads it (TORCHELASTIC_ERROR_FILE)."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        details = {"exit_code": exit_code, "time_ns": time.time_ns(), "timestamp": str(int(time.time()))}
        # The nesting is the one that torch's agent expects of an error file.
        content = {"message": {"message": message, "extraInfo": details}}
        Path(path).write_text(json.dumps(content), encoding="utf-8")


def _killed(rank: int, number: int) -> tuple[str, int]:
    """The words and the exit code for a rank that a signal ended."""
    name = signal.Signals(number).name
    error = MachineError(
        Problem(
            f"rank {rank} was killed ({name})",
            "look for a lack of memory (dmesg, the cluster's log); resume=auto goes on from the newest checkpoint",
        )
    )
    return str(error), error.exit_code


def _last_words(rank: int, failure: ProcessFailure) -> tuple[int, str, int]:
    """When a rank failed (ns; ranks without a message last), what it said, its exit code.

    The code is the one that it left with its words: the agent may have ended it before it could exit with it.
    """
    try:
        message = json.loads(Path(failure.error_file).read_text(encoding="utf-8"))["message"]
        details = message["extraInfo"]
        return int(details["time_ns"]), str(message["message"]), int(details["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        # As a shell counts a process that a signal ended.
        code = failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode
        return sys.maxsize, f"error: rank {rank} ended with exit code {code} and left no message", code
