"""Step times, and those that do not count."""

from __future__ import annotations

import pytest
import torch

from fasttrain.strategy import stopwatch
from fasttrain.strategy.stopwatch import Stopwatch


def test_the_median_leaves_out_what_holds_more_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 9.0, 12.0, 14.0])
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(moments))
    watch = Stopwatch(torch.device("cpu"))
    assert watch.median_s() is None
    watch.mark()
    assert watch.median_s() is None
    watch.mark()
    watch.mark(counts=False)
    watch.mark()
    watch.mark()
    # Steps of 1, 3 and 2 seconds; the 8 between the second and the third mark hold an evaluation.
    assert watch.median_s() == 2.0
    watch.reset()
    assert watch.median_s() is None
