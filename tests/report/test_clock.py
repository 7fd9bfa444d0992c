"""Both figures of the clock, by hand-moved time."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain.report.clock import Clock
from tests.report.conftest import Time


def test_pauses_and_setup_are_wall_time_only() -> None:
    time = Time()
    clock = Clock(100.0, now=time)
    time.now += 20
    assert (clock.seconds, clock.wall_seconds) == (0, 20)
    clock.start()
    time.now += 10
    with clock.paused("validation"):
        time.now += 3
        with clock.paused("checkpoint"):
            time.now += 2
        time.now += 1
    time.now += 4
    assert (clock.seconds, clock.wall_seconds) == (14, 40)
    clock.stop()
    time.now += 50
    assert (clock.seconds, clock.wall_seconds) == (14, 90)


def test_the_parts_add_up_to_the_wall_time() -> None:
    time = Time()
    clock = Clock(100.0, now=time)
    time.now += 20
    clock.start()
    for part, seconds in (("train stage 0", 5.0), ("train stage 1", 7.0)):
        clock.mark(part)
        time.now += seconds
        with clock.paused("validation"):
            time.now += 1
    clock.stop()
    time.now += 2
    segments = clock.segments
    assert segments["setup"] == 20
    assert segments["train stage 0"] == 5
    assert segments["train stage 1"] == 7
    assert segments["validation"] == 2
    assert sum(segments.values()) == pytest.approx(clock.wall_seconds)


def test_the_device_is_waited_for_where_parts_change() -> None:
    time, calls = Time(), []
    clock = Clock(100.0, now=time)
    clock.synchronize = lambda: calls.append(time.now)
    clock.start()
    time.now += 5
    with clock.paused("validation"):
        time.now += 1
    assert 105.0 in calls
    assert 106.0 in calls


def test_a_resumed_run_goes_on_from_both_figures() -> None:
    time = Time()
    first = Clock(100.0, now=time)
    first.start()
    time.now += 10
    with first.paused("checkpoint"):
        state = first.state_dict()
    time.now = 500.0
    second = Clock(500.0, now=time)
    time.now += 8
    second.load_state_dict(state)
    second.start()
    time.now += 4
    assert second.seconds == 14
    assert second.wall_seconds == 10 + 12


def test_only_validation_and_checkpoints_stop_a_clock_that_has_started() -> None:
    clock = Clock(100.0, now=Time())
    with clock.paused("compile"):
        pass
    clock.start()
    with pytest.raises(ValueError, match="compile counts as training time"), clock.paused("compile"):
        pass


def test_tuning_before_the_start_counts_on_both_clocks() -> None:
    time = Time()
    clock = Clock(100.0, now=time)
    time.now += 5
    with clock.counted("tuning"):
        time.now += 7
        with clock.paused("warm-up"):
            time.now += 2
    time.now += 1
    clock.start()
    clock.start()
    time.now += 10
    assert (clock.seconds, clock.wall_seconds) == (17, 25)
    assert clock.segments == {"setup": 6, "tuning": 7, "warm-up": 2, "train": 10}


def test_the_time_before_the_first_mark_is_the_first_parts() -> None:
    time = Time()
    clock = Clock(100.0, first="setup: plan", now=time)
    time.now += 3
    clock.mark("setup: libraries")
    time.now += 4
    clock.start()
    assert clock.segments == {"setup: plan": 3, "setup: libraries": 4, "train": 0}
    assert clock.seconds == 0


def test_an_error_in_a_pause_ends_it() -> None:
    time = Time()
    clock = Clock(100.0, now=time)
    clock.start()
    with contextlib.suppress(RuntimeError), clock.paused("checkpoint"):
        time.now += 3
        raise RuntimeError
    time.now += 4
    assert (clock.seconds, clock.wall_seconds) == (4, 7)


@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "stop", "mark", "validation", "checkpoint", "tuning"]), st.floats(0, 50)),
        max_size=12,
    )
)
def test_the_parts_always_add_up(steps: list[tuple[str, float]]) -> None:
    time = Time()
    clock = Clock(100.0, now=time)
    for what, elapsed in steps:
        before = clock.seconds
        if what == "mark":
            clock.mark("train stage 1")
        elif what in ("start", "stop"):
            getattr(clock, what)()
        else:
            with clock.counted(what) if what == "tuning" else clock.paused(what):
                time.now += elapsed
        time.now += elapsed
        assert before <= clock.seconds <= clock.wall_seconds + 1e-6
    assert sum(clock.segments.values()) == pytest.approx(clock.wall_seconds)


def test_the_process_is_older_than_its_first_line() -> None:
    code = "import time; now = time.monotonic(); from fasttrain.report.clock import process_start_time; "
    code += "print(now - process_start_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Ticks of 10 ms; an interpreter is up within seconds.
    assert -0.02 <= float(done.stdout) < 20
