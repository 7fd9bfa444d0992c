"""Ctrl-C, SIGTERM and SIGUSR1: remembered where they arrive, acted on between two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection
from contextlib import suppress
from types import FrameType

from fasttrain.errors import INTERRUPTED, TERMINATED, Stopped

# Seconds after a signal in which a step boundary must be reached before the process gives up waiting;
# under the 30 s that SLURM, Kubernetes and torchrun grant.
GRACE_S = 25

EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGUSR1: TERMINATED}


class StopSignals:
    """Owns the handlers of one run, from ``install`` to ``restore``.

    The first signal asks for a stop (``requested`` is its number). A second Ctrl-C ends the run at once; after
    SIGTERM or SIGUSR1, whose sender will not wait, the process ends itself when GRACE_S have passed.
    Before training there is nothing to save: there a signal raises ``Stopped`` where it arrives.

    Python runs a handler only between two instructions of the main thread, and a rank that waits in a collective
    for one that is gone never comes back to them. So a second thread reads the signals' numbers from a pipe.

    Args:
        grace_s: In place of GRACE_S.
        hurried: Signals whose sender will not wait.
        speaks: Whether the first signal is answered with a line on stderr; one rank of a run does.
    """

    def __init__(
        self,
        *,
        grace_s: float | None = None,
        hurried: Collection[int] = (signal.SIGTERM, signal.SIGUSR1),
        speaks: bool = True,
    ) -> None:
        self._grace_s, self._hurried = GRACE_S if grace_s is None else grace_s, hurried
        self.speaks = speaks
        self.requested: int | None = None
        self.training = False
        self._saved = threading.Event()
        self._previous: dict[int, object] = {}
        self._pipe_end: int | None = None
        self._previous_wakeup = -1

    def install(self) -> None:
        """Take over the signals; Lightning's own handlers, where set, are put aside."""
        for number in EXIT_CODES:
            previous = signal.signal(number, self._handle)
            self._previous.setdefault(number, previous)
        if self._pipe_end is None:
            watched, self._pipe_end = os.pipe()
            os.set_blocking(self._pipe_end, False)
            self._previous_wakeup = signal.set_wakeup_fd(self._pipe_end, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(watched,), daemon=True).start()

    def reached_boundary(self) -> None:
        """The state is saved: from here on the run ends by itself."""
        self._saved.set()

    def restore(self) -> None:
        """Give the signals back and end the watching thread."""
        self.reached_boundary()
        if self._pipe_end is not None:
            signal.set_wakeup_fd(self._previous_wakeup)
            os.close(self._pipe_end)
            self._pipe_end = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()

    def exit_code(self) -> int:
        """What the process returns for the signal that came."""
        return EXIT_CODES[signal.Signals(self.requested or signal.SIGINT)]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.training:
            raise Stopped("before the first training step; nothing was lost", EXIT_CODES[signal.Signals(number)])
        if self.requested is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.requested is None:
            self.requested = number
            if self.speaks:
                # No print: a handler may have interrupted one. A terminal that has gone is no reason to fail.
                with suppress(OSError):
                    os.write(2, b"stopping after this step\n")

    def _watch(self, pipe: int) -> None:
        """Read signals until the pipe closes; after one that does not wait, give the run its grace to save."""
        while number := os.read(pipe, 1):
            if number[0] in self._hurried and not self._saved.wait(self._grace_s):
                self._give_up(number[0])
        os.close(pipe)

    def _give_up(self, number: int) -> None:
        """End the process, in the watching thread: the main one does not come back."""
        os.write(2, b"stopped: no step boundary was reached in time; the newest checkpoint on disk stands\n")
        os._exit(EXIT_CODES[signal.Signals(number)])
