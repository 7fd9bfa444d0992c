"""A file that cannot be written is refused before the work that it shall hold, by every command that writes one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from fasttrain.cli import main
from fasttrain.errors import MachineError
from fasttrain.report.files import require_writable


def test_what_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("old")
    for path in (tmp_path / "new.json", tmp_path / "there.json", tmp_path / "not" / "yet" / "x.json"):
        require_writable(path, "--json")
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]
    assert (tmp_path / "there.json").read_text() == "old"


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path, "a folder, expected a file"),
        (tmp_path / "file" / "x.json", "cannot be written: Not a directory"),
        (tmp_path / "pipe", "it is a named pipe, not a file"),
        (Path("/dev/null"), "it is a device, not a file"),
        (Path("/proc/x.json"), "cannot be written: "),
        (tmp_path / ("n" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(MachineError) as raised:
            require_writable(path, "--json")
        assert str(raised.value).startswith(f"environment error: --json {path}"), raised.value
        assert words in str(raised.value)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "data", "recipe=quickstart", "--need", "none", "--json", "/proc/x.json"],
        ["bench", "step", "recipe=quickstart", "trainer.accelerator=cpu", "--json", "/proc/x.json"],
        ["bench", "ddp", "--model", "resnet50", "--json", "/proc/x.json"],
        ["eval", "gone.ckpt", "--json", "/proc/x.json"],
        ["report", "gone", "--json", "/proc/x.json"],
        ["report", "gone", "--out", "/proc/x.json"],
        ["report", "gone.json", "--out", "/proc/x.json"],
    ],
)
def test_commands_say_so_first(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("data.DataBenchmark", "step.StepBenchmark", "ddp.bench_ddp"):
        monkeypatch.setattr(f"fasttrain.bench.{name}", lambda *_: pytest.fail("it measures"))
    monkeypatch.chdir(tmp_path)
    assert main(words) == 4
    out, error = capsys.readouterr()
    assert f"{words[-2]} /proc/x.json cannot be written" in error
    assert out == ""


def test_records_of_ddp_take_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({}))
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "a.json"), "--json", str(tmp_path / "b.json")])
    assert "take --out, not --json" in capsys.readouterr().err
