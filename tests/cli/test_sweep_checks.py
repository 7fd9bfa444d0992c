"""``-m``: what any job cannot run is said before the first one starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain.cli import main
from fasttrain.config.compose import ComposedRun
from fasttrain.errors import ConfigError
from fasttrain.run.sweeping import run_sweep


def refusal(*overrides: str) -> tuple[list[str], int]:
    """What is said of a sweep of the small run, each problem once, and how many jobs were started."""
    started: list[ComposedRun] = []

    def train(run: ComposedRun) -> int:
        started.append(run)
        return 0

    try:
        run_sweep(["recipe=quickstart", *overrides], None, train)
    except ConfigError as error:
        return [problem.what for problem in error.problems], len(started)
    return [], len(started)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_the_rooms_refuse_in_any_job_is_said_before_the_first(tmp_path: Path) -> None:
    said, started = refusal("schedule.warmup_epochs=0.5,100,200", "seed=1,2", "data.cache_px=8", "data.cache=off")
    assert started == 0
    assert [what.partition(":")[0].partition(",")[0] for what in said] == [
        "data.cache_px=8",
        "schedule.warmup_epochs=100",
        "schedule.warmup_epochs=200",
    ]
    assert not (tmp_path / "runs").exists()


def test_what_the_libraries_refuse_in_any_job_is_said_before_the_first(tmp_path: Path) -> None:
    said, started = refusal("optimizer=torch", "optimizer.name=AdamW,NoSuch,AdamX")
    assert started == 0
    assert [what.partition(":")[0] for what in said] == ["optimizer.name=NoSuch", "optimizer.name=AdamX"]
    assert not (tmp_path / "runs").exists()


def test_jobs_of_one_kind_leave_the_libraries_to_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasttrain.run.planning.library_problems", None)
    assert refusal("seed=1,2", "optimizer.lr=0.1,0.2") == ([], 4)
    assert refusal("dry_run=true", "optimizer=sgd,hybrid") == ([], 2)


def test_the_command_ends_as_for_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "recipe=quickstart", "schedule.warmup_epochs=0.5,100"]) == 2
    assert "schedule.warmup_epochs=100" in capsys.readouterr().err
