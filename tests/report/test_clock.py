"""Both figures of the clock, by hand-moved time."""

from __future__ import annotations

import pytest

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
    clock = Clock(100.0, synchronize=lambda: calls.append(time.now), now=time)
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
