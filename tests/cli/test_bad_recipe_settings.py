"""Optimizer and schedule settings that no run can have: exit code 2, what was given and a line that mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain.cli import main

ROWS = [
    (["optimizer.momentum=1"], "optimizer.momentum=1: expected a number of at least 0 and below 1", "momentum=0.9"),
    (["optimizer.momentum=-0.1"], "optimizer.momentum=-0.1", "optimizer.momentum=0.9"),
    (["schedule.momentum={high: 1.0, low: 0.9}"], "schedule.momentum.high=1.0", "schedule.momentum.high=0.98"),
    (["schedule.momentum={high: 0.9, low: 0.95}"], "below schedule.momentum.low=0.95", "schedule.momentum.high=0.95"),
    (
        ["optimizer=rectified_lars", "optimizer.min_trust_ratio=2"],
        "above optimizer.max_trust_ratio=1",
        "optimizer.min_trust_ratio=1 optimizer.max_trust_ratio=2",
    ),
    (["schedule.warmup_epochs=18"], "the stages have 18 epochs in all", "schedule.warmup_epochs=3.6"),
    (
        ["optimizer=hybrid", "optimizer.transition_center_epochs=40"],
        "only after epoch 40.25, and the stages have 18 epochs in all",
        "optimizer.transition_center_epochs=2",
    ),
    (["schedule.end_lr=3"], "schedule.end_lr=3: above the peak", "schedule.end_lr=0"),
    (["optimizer=adamw"], "optimizer=adamw: no such option", "optimizer=torch optimizer.name=AdamW"),
    (["schedule=exponential"], "schedule=exponential: no such option", "schedule="),
]


@pytest.mark.parametrize(("overrides", "what", "fix"), ROWS, ids=[row[0][-1] for row in ROWS])
def test_settings_that_are_refused(
    overrides: list[str], what: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert main(["train", "recipe=quickstart", "dry_run=true", f"run_dir={run_dir}", *overrides]) == 2
    printed = capsys.readouterr().err
    assert what in printed
    assert fix in printed
    assert not run_dir.exists()
