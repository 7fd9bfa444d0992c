"""From an error to the last words on the terminal and the process's exit code."""

from __future__ import annotations

import os
import sys
import traceback

from fasttrain.errors import INTERRUPTED, REFUSALS, ConfigError, FasttrainError, MachineError, Problem
from fasttrain.strategy.launch import handed_over, leave_last_words, rank_prefix

# A fault of this program.
INTERNAL = 1


def exit_code_of(error: BaseException, *, debug: bool) -> int:
    """Print what went wrong, once, as the last words, and return the exit code.

    Args:
        error: What ended the command.
        debug: Print the full trace before the words.

    Raises:
        SystemExit: As it came: argparse's own exits.
    """
    if isinstance(error, SystemExit):
        raise error
    if debug:
        traceback.print_exception(error)
    words, code = last_words(error)
    leave_last_words(words, code)
    prefix = rank_prefix()
    # What this program's own launcher prints, once, for the rank that failed first; and what all ranks find alike.
    if handed_over() is not None or (prefix and isinstance(error, ConfigError)):
        return code
    sys.stdout.flush()
    print("\n".join(prefix + line for line in words.splitlines()), file=sys.stderr, flush=True)
    return code


def leave_at_once(code: int) -> None:
    """End the process without taking anything down: libraries abort it where their GPU no longer answers them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def last_words(error: BaseException) -> tuple[str, int]:
    """The words and the exit code for an error."""
    if isinstance(error, FasttrainError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    reason = " ".join(str(error).split()) or "no message"
    if type(error).__name__ == "OutOfMemoryError":
        full = MachineError(
            Problem(
                f"the device's memory is full: {reason}",
                "halve trainer.device_batch_size; the rest is accumulated",
            )
        )
        return str(full), full.exit_code
    if isinstance(error, OSError) and error.errno in REFUSALS and error.filename is not None:
        refused = MachineError(Problem(f"{error.filename}: {error.strerror}", REFUSALS[error.errno]))
        return str(refused), refused.exit_code
    if isinstance(error, MemoryError):
        full = MachineError(
            Problem(
                "the machine's memory is full" + (f": {reason}" if str(error) else ""),
                "a smaller data.workers or trainer.device_batch_size, data.cache=off, or more memory",
            )
        )
        return str(full), full.exit_code
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(where[-1].filename)}:{where[-1].lineno})" if where else ""
    return (
        f"internal error: {type(error).__name__}: {reason}{place}\n    fix: debug=true shows the full trace",
        INTERNAL,
    )
