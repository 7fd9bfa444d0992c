"""A run's folder is its own."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
import yaml

from fasttrain.errors import ConfigError, MachineError
from fasttrain.report.console import configure_logging, log
from fasttrain.report.machine import command_line, commit
from fasttrain.report.run_dir import choose_run_dir, has_checkpoint, open_run_dir
from tests.report.conftest import make_config


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "2026-11-30_12-00-00")
    paths = [choose_run_dir(make_config(), {})[0] for _ in range(3)]
    assert [path.name for path in paths] == [
        "2026-11-30_12-00-00_tiny",
        "2026-11-30_12-00-00_tiny-2",
        "2026-11-30_12-00-00_tiny-3",
    ]
    assert all(path.is_dir() for path in paths)


def test_a_requeued_slurm_job_finds_its_folder_and_another_run_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job, config = {"SLURM_JOB_ID": "4711"}, make_config()
    path, resume = choose_run_dir(config, job)
    assert (path.name, resume) == ("slurm-4711_tiny", "auto")
    path.mkdir(parents=True)
    written = dataclasses.replace(config, run_dir=str(path), resume="auto")
    (path / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(written)))
    assert choose_run_dir(config, job) == (path, "auto")
    other = dataclasses.replace(config, seed=8)
    assert choose_run_dir(other, job)[0].name == "slurm-4711_tiny-2"
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}
    assert choose_run_dir(config, array)[0].name == "slurm-4711_3_tiny"


def test_a_run_has_a_checkpoint_where_it_would_look_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, config = tmp_path / "run", make_config()
    auto = dataclasses.replace(config, run_dir=str(folder), resume="auto")
    last, other = folder / "checkpoints" / "last.ckpt", tmp_path / "other.ckpt"
    named = dataclasses.replace(config, resume=str(other))
    assert not has_checkpoint(auto, {})
    assert not has_checkpoint(named, {})
    last.parent.mkdir(parents=True)
    last.touch()
    other.touch()
    assert has_checkpoint(auto, {})
    assert has_checkpoint(named, {})
    assert not has_checkpoint(dataclasses.replace(auto, resume=None), {})
    assert not has_checkpoint(config, {"SLURM_JOB_ID": "4711"})
    folder.rename(tmp_path / "moved")
    (tmp_path / "runs").mkdir()
    (tmp_path / "moved").rename(tmp_path / "runs" / "slurm-4711_tiny")
    assert has_checkpoint(config, {"SLURM_JOB_ID": "4711"})
    assert not has_checkpoint(config, {})
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["slurm-4711_tiny"]


@pytest.mark.parametrize("text", ["", "a: [", "text", "[1]", "recipe: tiny", "stages: 1", "stages: [1]", b"\xff"])
def test_settings_of_a_slurm_job_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    job = {"SLURM_JOB_ID": "4711"}
    written = choose_run_dir(make_config(), job)[0] / "config.yaml"
    written.parent.mkdir(parents=True)
    written.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as raised:
        choose_run_dir(make_config(), job)
    assert str(written) in raised.value.problems[0].what
    assert "run_dir=PATH" in raised.value.problems[0].fix


def test_auto_needs_a_folder_to_look_in() -> None:
    with pytest.raises(ConfigError, match="run_dir"):
        choose_run_dir(dataclasses.replace(make_config(), resume="auto"), {})


def test_a_folder_with_a_run_is_refused_unless_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch\n1\n")
    with pytest.raises(ConfigError, match="already holds a run"):
        open_run_dir(tmp_path, resuming=False)
    open_run_dir(tmp_path, resuming=True)
    assert (tmp_path / "metrics.csv").read_text() == "epoch\n1\n"


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        open_run_dir(tmp_path / "file" / "run", resuming=False)


def test_only_rank_0_has_a_log_file_and_others_say_who_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        configure_logging(tmp_path, 0)
        log.info("from the first")
        configure_logging(None, 1)
        log.info("not said")
        log.warning("from the second")
    finally:
        configure_logging(None, 0)
        logging.captureWarnings(False)
    assert capsys.readouterr().out == "from the first\n[rank 1] from the second\n"
    text = (tmp_path / "train.log").read_text()
    assert "from the first" in text
    assert "second" not in text


@pytest.mark.parametrize(
    ("argv", "environment", "command"),
    [
        (["/usr/bin/python3", "train.py", "recipe=quickstart"], {}, "python3 train.py recipe=quickstart"),
        (["/venv/bin/python", "/venv/bin/fasttrain", "train", "a=b c"], {}, "fasttrain train 'a=b c'"),
        (
            ["/usr/bin/python3", "-u", "train.py", "seed=1"],
            {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            "torchrun --nnodes=2 --nproc-per-node=2 train.py seed=1",
        ),
    ],
)
def test_the_command_as_it_was_typed(argv: list[str], environment: dict[str, str], command: str) -> None:
    assert command_line(argv, environment) == command


def test_code_outside_a_checkout_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None


def test_a_name_that_is_too_long_is_an_environment_error(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written: File name too long") as caught:
        open_run_dir(tmp_path / ("x" * 300), resuming=False)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_runs_that_is_no_folder_is_an_environment_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "file":
        (tmp_path / "runs").write_text("")
    else:
        (tmp_path / "runs").symlink_to(tmp_path / "absent")
    with pytest.raises(MachineError, match=f"{tmp_path / 'runs'} cannot be written"):
        choose_run_dir(make_config(), {})


def test_a_folder_given_or_resumed_from_is_taken_as_it_is(tmp_path: Path) -> None:
    config = dataclasses.replace(make_config(), run_dir=str(tmp_path / "mine"), resume="auto")
    # SLURM's name is for runs without one.
    assert choose_run_dir(config, {"SLURM_JOB_ID": "4711"}) == (tmp_path / "mine", "auto")
    assert not (tmp_path / "mine").exists()


def test_a_folder_is_made_with_all_that_a_run_fills(tmp_path: Path) -> None:
    open_run_dir(tmp_path / "a" / "run", resuming=False)
    shown = [path.name for path in (tmp_path / "a" / "run").iterdir() if not path.name.startswith(".")]
    assert sorted(shown) == ["checkpoints", "report"]
