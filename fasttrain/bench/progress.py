"""One line on the console after each measurement: what it gave, and how long it took."""

from __future__ import annotations

import time

from fasttrain.bench.figures import number
from fasttrain.report.console import log


class Watch:
    """Times one measurement, from its making to ``say``."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, *parts: str, within: str = "") -> None:
        """Print the line.

        Args:
            parts: What was measured and what came out; empty ones are left out.
            within: What the seconds are made of, e.g. ``12.3 s warm-up and compilation``.
        """
        seconds = f"{time.monotonic() - self._started:.1f} s"
        if within:
            seconds += f", of which {within}"
        log.info(" | ".join(part for part in (*parts, seconds) if part))


def rate_text(rate: float | None) -> str:
    """Images/s in words."""
    return "no step timed" if rate is None else f"{number(rate)} images/s"
