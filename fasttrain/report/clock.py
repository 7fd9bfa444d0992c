"""The two figures of a run: seconds by DAWNBench's rule, and the wall time of the process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# DAWNBench's README, FAQ: "you don't need to include the time required to calculate validation accuracy and
# save checkpoints". Nothing else may be left out once training has begun.
NOT_COUNTED = ("validation", "checkpoint")

# The variable in which a sweep says when a job's turn came, seconds on time.monotonic's clock.
JOB_STARTED = "FASTTRAIN_JOB_STARTED"


@dataclass(eq=False)
class _Part:
    """A part of the run that is being timed: its name, and what it does to the count of seconds."""

    name: str
    pauses: bool


class Clock:
    """Owns the time of one run, from the start of the process to its end.

    Every moment belongs to one named part (``segments``): the first one, then what ``mark`` says, and inside
    ``paused`` and ``counted`` the name given there. The parts add up to ``wall_seconds``.

    Args:
        process_start: When the process began, on the clock that ``now`` reads; see ``process_start_time``.
        first: Name of the part that the process begins with.
        now: Seconds on a steady clock.

    Attributes:
        synchronize: Waits until the device has done its work; called wherever one part gives way to
            another, so that work in flight is counted where it was asked for. None until there is a device.
    """

    def __init__(
        self,
        process_start: float,
        *,
        first: str = "setup",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self.synchronize: Callable[[], None] | None = None
        self._process_start = process_start
        self._last = process_start
        self._running = first
        self._started = False
        self._stopped = False
        self._parts: list[_Part] = []
        self._seconds = 0.0
        self._wall_before = 0.0
        self._segments: dict[str, float] = {}

    # --- the figures ---

    @property
    def seconds(self) -> float:
        """Seconds since ``start`` without validation and checkpoint writing, earlier processes included."""
        return self._seconds + (self._now() - self._last if self._counting() else 0.0)

    @property
    def wall_seconds(self) -> float:
        """Seconds since the process began, plus those of the processes that this run continues."""
        return self._wall_before + self._now() - self._process_start

    @property
    def segments(self) -> dict[str, float]:
        """Seconds by part, in order of first appearance; they add up to ``wall_seconds``."""
        segments = dict(self._segments)
        segments[self._name()] = segments.get(self._name(), 0.0) + self._now() - self._last
        return segments

    @property
    def started(self) -> bool:
        """Whether ``start`` was called in this process."""
        return self._started

    # --- what moves it ---

    def start(self) -> None:
        """Begin to count seconds: just before the first real read. A second call changes nothing."""
        if not self._started:
            self._switch()
            self._started = True
            self._running = "train"

    def stop(self) -> None:
        """End the count of seconds for good; what follows is the part ``report``."""
        if not self._stopped:
            self._switch()
            self._stopped = True
            self._running = "report"

    def mark(self, part: str) -> None:
        """From now on, time outside ``paused`` and ``counted`` belongs to ``part`` (a stage, for example)."""
        if part != self._running and not self._stopped:
            self._switch()
            self._running = part

    @contextlib.contextmanager
    def paused(self, what: str) -> Iterator[None]:
        """Do not count the seconds inside; may be nested.

        Args:
            what: The part's name. Before ``start`` any (warm-up, compile): nothing is counted there anyway.

        Raises:
            ValueError: After ``start``, anything but validation and checkpoint.
        """
        if self._started and what not in NOT_COUNTED:
            allowed = " and ".join(NOT_COUNTED)
            raise ValueError(f"{what} counts as training time: only {allowed} stop a clock that has started")
        with self._part(_Part(what, pauses=True)):
            yield

    @contextlib.contextmanager
    def counted(self, what: str) -> Iterator[None]:
        """Count the seconds inside under their own name, before ``start`` too (tuning, for example)."""
        with self._part(_Part(what, pauses=False)):
            yield

    # --- a run that continues in another process ---

    def state_dict(self) -> dict[str, Any]:
        """The figures up to now, in plain types."""
        return {"seconds": self.seconds, "wall_seconds": self.wall_seconds, "segments": self.segments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the figures of ``state_dict``; what this process has spent so far is added to them."""
        self._seconds += float(state["seconds"])
        self._wall_before += float(state["wall_seconds"])
        for name, seconds in state["segments"].items():
            self._segments[name] = self._segments.get(name, 0.0) + float(seconds)

    # --- inside ---

    def _name(self) -> str:
        return self._parts[-1].name if self._parts else self._running

    def _counting(self) -> bool:
        if self._stopped or any(part.pauses for part in self._parts):
            return False
        return self._started or bool(self._parts)

    def _switch(self) -> None:
        """Close the books on the part that runs now."""
        if self.synchronize is not None:
            self.synchronize()
        now = self._now()
        elapsed = now - self._last
        if self._counting():
            self._seconds += elapsed
        self._segments[self._name()] = self._segments.get(self._name(), 0.0) + elapsed
        self._last = now

    @contextlib.contextmanager
    def _part(self, part: _Part) -> Iterator[None]:
        self._switch()
        self._parts.append(part)
        try:
            yield
        finally:
            self._switch()
            self._parts.remove(part)


def process_start_time() -> float:
    """When this run's process began, on ``time.monotonic``'s clock; the moment of the call where nothing says.

    A job of a sweep that runs after another one in the same process began when its turn came (JOB_STARTED).

    Source: proc(5), /proc/PID/stat field 22 (start in clock ticks since boot) and /proc/uptime.
    """
    if JOB_STARTED in os.environ:
        return float(os.environ[JOB_STARTED])
    now = time.monotonic()
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            # The second field, the command's name in brackets, may hold spaces.
            started_ticks = int(stat.read().rpartition(")")[2].split()[19])
            age = float(uptime.read().split()[0]) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - max(0.0, age)
