"""The command line around training: sweeps, ``--cfg job``, a reader that leaves early."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fasttrain import commands
from fasttrain.config.compose import ComposedRun
from fasttrain.errors import DataError, Problem, Stopped
from fasttrain.run import sweeping

SWEEP = ["train", "-m", "recipe=quickstart", "seed=1,2,3"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def never(run: ComposedRun) -> int:
    raise AssertionError("nothing must be trained")


@pytest.mark.parametrize("arguments", [["train", "--help"], ["eval", "--help"], ["train", "recipe=quickstart"]])
def test_a_reader_that_leaves_is_no_error(arguments: list[str]) -> None:
    extra = ["dry_run=true", "run_dir=dry"] if "recipe=quickstart" in arguments else []
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "fasttrain", *arguments, *extra], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert ended.returncode in (0, commands.READER_GONE)
    assert ended.stderr == ""


def test_a_broken_pipe_of_something_else_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(run: ComposedRun) -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        commands.dispatch(["train", "recipe=quickstart"], train)


def test_cfg_of_a_sweep_prints_every_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert commands.dispatch([*SWEEP, "--cfg", "job"], never) == 0
    out = capsys.readouterr().out
    assert [f"seed: {seed} " in out for seed in (1, 2, 3)] == [True] * 3
    assert "# job 3 of 3: recipe=quickstart seed=3" in out
    assert list(tmp_path.iterdir()) == []


def test_each_job_has_its_own_start_and_only_finished_ones_are_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    starts: list[str | None] = []

    def train(run: ComposedRun) -> int:
        starts.append(os.environ.get(sweeping.JOB_STARTED))
        if run.config.seed == 2:
            raise DataError("no images")
        return 0

    before = time.monotonic()
    assert commands.dispatch(SWEEP, train) == 3
    assert starts[0] is None
    assert before <= float(str(starts[1])) <= float(str(starts[2])) <= time.monotonic()
    assert sweeping.JOB_STARTED not in os.environ
    (folder,) = Path("runs").resolve().iterdir()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        f"2 of 3 jobs finished in {folder}",
        f"compare them: fasttrain report {folder}/0 {folder}/2",
    ]


def test_a_stopped_sweep_says_how_to_go_on_with_each_job() -> None:
    def train(run: ComposedRun) -> int:
        if run.config.seed == 2:
            raise Stopped(Problem("stopped at step 5 of 9", "the same command with resume=auto continues"), 130)
        return 0

    with pytest.raises(Stopped) as caught:
        commands.dispatch(SWEEP, train)
    (folder,) = Path("runs").resolve().iterdir()
    text = str(caught.value)
    assert caught.value.exit_code == 130
    assert "job 2 of 3: stopped at step 5 of 9" in text
    assert "same command" not in text
    assert f"python train.py recipe=quickstart seed=2 run_dir={folder}/1 resume=auto" in text
    assert f"python train.py recipe=quickstart seed=3 run_dir={folder}/2\n" in f"{text}\n"
    assert "-m" not in text


def test_a_dry_sweep_compares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.dispatch([*SWEEP, "dry_run=true"], lambda run: 0) == 0
    assert "fasttrain report" not in capsys.readouterr().out


def test_two_sweeps_of_one_second_have_two_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasttrain.run.sweeping.time.strftime", lambda form: "now")
    for _ in range(2):
        commands.dispatch(SWEEP, lambda run: 0)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["now_sweep", "now_sweep-2"]
