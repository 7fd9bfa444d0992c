"""What is stopped half way is published as far as it came, once, and the error goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.bench.figures import Figure, Outcome
from fasttrain.bench.stopping import measure_and_publish
from fasttrain.errors import DataError, Stopped
from fasttrain.strategy.world import World

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Two:
    """Measures one figure, then does what it is told to, then measures another."""

    def __init__(self, between: Callable[[], None], *, before: Callable[[], None] = lambda: None) -> None:
        self._before, self._between = before, between
        self._figures: list[Figure] = []

    def measure(self) -> None:
        self._before()
        self._figures.append(Figure("first", "ms", (1.0,)))
        self._between()
        self._figures.append(Figure("second", "ms", (2.0,)))

    def outcome(self) -> Outcome:
        return Outcome(list(self._figures))

    def missing(self) -> list[str]:
        return ["first", "second"][len(self._figures) :]


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def killing(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def world(rank: int = 0) -> World:
    return World(rank=rank, local_rank=rank, size=2, local_size=2, launcher="torchrun")


def test_what_ends_is_published_whole() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    published: list[Outcome] = []
    measure_and_publish(lambda: Two(lambda: None), published.append, world())
    (outcome,) = published
    assert [figure.name for figure in outcome.figures] == ["first", "second"]
    assert outcome.cut is None
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("error", [DataError("a broken file\n and more"), KeyboardInterrupt(), RuntimeError("no")])
def test_an_error_goes_on_as_it_came(error: BaseException) -> None:
    published: list[Outcome] = []
    with pytest.raises(type(error)) as raised:
        measure_and_publish(lambda: Two(raising(error)), published.append, world())
    assert raised.value is error
    (outcome,) = published
    assert [figure.name for figure in outcome.figures] == ["first"]
    assert outcome.cut is not None
    assert outcome.cut.missing == ("second",)
    assert "\n" not in outcome.cut.why
    assert outcome.text().startswith("CUT SHORT, not all was measured: ")
    assert outcome.all_notes()[0].endswith("missing: second")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)])
def test_a_signal_between_trainings(number: signal.Signals, code: int) -> None:
    published: list[Outcome] = []
    with pytest.raises(Stopped) as raised:
        measure_and_publish(lambda: Two(killing(number)), published.append, world())
    assert raised.value.exit_code == code
    assert str(raised.value) == f"stopped: by {number.name}; what was measured is published above"
    (outcome,) = published
    assert outcome.cut is not None
    assert (outcome.cut.why, outcome.cut.missing) == (number.name, ("second",))


def test_what_a_library_makes_of_a_signal_is_still_a_signal() -> None:
    def compile_something() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException as error:
            raise RuntimeError("the compiler failed") from error

    with pytest.raises(Stopped, match="by SIGTERM"):
        measure_and_publish(lambda: Two(compile_something), lambda _: None, world())


def test_no_library_that_catches_exceptions_keeps_a_signal() -> None:
    def write_a_line() -> None:
        with contextlib.suppress(Exception):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="what was measured is published above"):
        measure_and_publish(lambda: Two(write_a_line), lambda _: None, world())


def test_before_the_first_figure_nothing_is_published() -> None:
    published: list[Outcome] = []
    with pytest.raises(Stopped, match="by SIGTERM; nothing was measured yet, and nothing is published"):
        measure_and_publish(
            lambda: Two(lambda: None, before=killing(signal.SIGTERM)),
            published.append,
            world(),
        )
    assert published == []


def test_only_rank_0_publishes() -> None:
    published: list[Outcome] = []
    with pytest.raises(Stopped, match="by SIGTERM"):
        measure_and_publish(lambda: Two(killing(signal.SIGTERM)), published.append, world(rank=1))
    assert published == []


def test_signals_wait_for_what_is_being_published() -> None:
    published: list[Outcome] = []

    def publish(outcome: Outcome) -> None:
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        published.append(outcome)

    with pytest.raises(Stopped, match="all was measured and is published above"):
        measure_and_publish(lambda: Two(lambda: None), publish, world())
    error = DataError("a broken file")
    with pytest.raises(DataError) as raised:
        measure_and_publish(lambda: Two(raising(error)), publish, world())
    assert raised.value is error
    assert len(published) == 2


def test_what_cannot_be_published_hides_no_error(said: list[str]) -> None:
    error = DataError("a broken file")
    with pytest.raises(DataError) as raised:
        measure_and_publish(lambda: Two(raising(error)), lambda _: raising(OSError("a full disk"))(), world())
    assert raised.value is error
    assert "what was measured could not be published" in said[-1]
    assert "a full disk" in said[-1]


def test_a_main_thread_that_is_stuck_outside_python_is_not_waited_for() -> None:
    # It locks a mutex twice in C, as one that waits in a collective for a rank that is gone: no handler runs.
    program = (
        "import ctypes, os, signal, threading\n"
        "from fasttrain.bench import stopping\n"
        "from tests.bench.test_stopping import Two, world\n"
        "stopping.GRACE_S = 0.2\n"
        "def stick():\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
        "    libc.pthread_mutex_lock(mutex)\n"
        "    libc.pthread_mutex_lock(mutex)\n"
        "stopping.measure_and_publish(lambda: Two(stick), lambda outcome: print(outcome.text()), world())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=50, capture_output=True, text=True)
    assert done.returncode == 143, done.stderr
    assert done.stdout.startswith("CUT SHORT, not all was measured: SIGTERM")
    assert done.stderr == "stopped: by SIGTERM; what was measured is published above\n"
