"""A benchmark that is stopped half way publishes what it has measured. Imports no torch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from fasttrain.bench.figures import Cut, Outcome
from fasttrain.errors import Stopped
from fasttrain.report.console import log
from fasttrain.run.exits import exit_code_of, last_words, leave_at_once
from fasttrain.strategy.world import World
from fasttrain.trainer.signals import EXIT_CODES, StopSignals

# Seconds after a signal in which the main thread must have begun to publish, before another one does it: a rank that
# waits for one that is gone never does. torchrun and SLURM grant 30, and tables take a few.
GRACE_S = 15


class Benchmark(Protocol):
    """What measures, and can be asked at any time what it has."""

    def measure(self) -> None:
        """Measure all there is to measure."""
        ...

    def outcome(self) -> Outcome:
        """What is measured; no figures before the first measurement."""
        ...

    def missing(self) -> list[str]:
        """What is still to be measured."""
        ...


Publish = Callable[[Outcome], None]


def measure_and_publish(begin: Callable[[], Benchmark], publish: Publish, world: World) -> None:
    """Measure and publish all of it; what is stopped by a signal or an error is published as far as it came.

    Args:
        begin: Makes the benchmark; what takes its time there can be stopped too.
        publish: Called at most once, on rank 0 alone.
        world: This process's ranks.

    Raises:
        Stopped: A signal came.
        BaseException: What else ended the measurements.
    """
    account = Account(publish if world.rank == 0 else None)
    signals = BenchSignals(account)
    try:
        signals.install()
        account.benchmark = begin()
        account.benchmark.measure()
    except BaseException as error:
        name = signals.hold()
        account.await_turn()
        words = account.publish_rest(name or _first_line(error))
        if name is None:
            raise
        raise Stopped(f"by {name}; {words}", signals.exit_code()) from error
    else:
        signals.hold()
        account.await_turn()
        account.publish_all()
    finally:
        signals.restore()
    if signals.requested is not None:
        name = signal.Signals(signals.requested).name
        raise Stopped(f"by {name}; all was measured and is published above", signals.exit_code())


class Interruption(BaseException):
    """A signal came. What catches every ``Exception`` must not keep it: logging does, at each line that is written."""


class Account:
    """Sees to it that a benchmark is published once, by the main thread or by the one that watches the signals.

    Args:
        publish: None on ranks that do not.

    Attributes:
        benchmark: None until it has begun.
    """

    def __init__(self, publish: Publish | None) -> None:
        self.benchmark: Benchmark | None = None
        self._publish = publish
        # Taken by the thread that publishes, and never given back.
        self._turn = threading.Lock()

    def await_turn(self) -> None:
        """In the main thread; where the other one is publishing, it is about to end the process."""
        self._turn.acquire()

    def has_turn(self) -> bool:
        """In the watching thread: whether the main one has not begun to publish."""
        return self._turn.acquire(blocking=False)

    def publish_all(self) -> None:
        """Publish what was measured to its end."""
        if self._publish is not None and self.benchmark is not None:
            self._publish(self.benchmark.outcome())

    def publish_rest(self, why: str) -> str:
        """Publish what is measured, with what is missing; returns what became of it, in words.

        Whatever goes wrong here must not take the place of the error that ended the benchmark.
        """
        if self._publish is None:
            return "rank 0 publishes what was measured"
        try:
            outcome = Outcome() if self.benchmark is None else self.benchmark.outcome()
            if self.benchmark is None or not outcome.figures:
                return "nothing was measured yet, and nothing is published"
            if missing := self.benchmark.missing():
                outcome.cut = Cut(why, tuple(missing))
            self._publish(outcome)
        except Exception as error:
            log.warning(f"what was measured could not be published: {_first_line(error)}")
            return "what was measured could not be published"
        return "what was measured is published above"


class BenchSignals(StopSignals):
    """Owns the signals of a whole benchmark: the first one ends it where it arrives, in a training or between two.

    Args:
        account: Publishes in the watching thread where the main one does not come to it.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(grace_s=GRACE_S, hurried=tuple(EXIT_CODES))
        self._account = account
        self._holds = False

    def hold(self) -> str | None:
        """From here on signals are only remembered; returns the name of the one that came before."""
        self._holds = True
        self.reached_boundary()
        return None if self.requested is None else signal.Signals(self.requested).name

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first, self.requested = self.requested is None, self.requested or number
        if self._holds:
            return
        if is_first:
            raise Interruption
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    def _give_up(self, number: int) -> None:
        if not self._account.has_turn():
            return
        name = signal.Signals(number).name
        words = self._account.publish_rest(name)
        leave_at_once(exit_code_of(Stopped(f"by {name}; {words}", EXIT_CODES[signal.Signals(number)]), debug=False))


def _first_line(error: BaseException) -> str:
    return last_words(error)[0].splitlines()[0]
