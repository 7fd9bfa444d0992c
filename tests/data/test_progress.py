"""Progress of what takes minutes: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from fasttrain.data import progress
from fasttrain.data.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_log_there_is_a_line_when_one_is_due(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("unpacking x.tar", 4000, "files") as quick:
        quick.advance(2000)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Progress("unpacking x.tar", 4000, "files") as slow:
        slow.advance(1000)
        slow.advance(1000)
    text = capsys.readouterr().err
    assert text == "unpacking x.tar: 1,000 of 4,000 files\nunpacking x.tar: 2,000 of 4,000 files\n"


@pytest.mark.parametrize(("unit", "shown"), [("files", "4000/4000"), ("bytes", "4.0/4.0 kB")])
def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, unit: str, shown: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with Progress("unpacking x.tar", 4000, unit) as bar:
        for _ in range(4):
            bar.advance(1000)
    assert "unpacking x.tar" in terminal.getvalue()
    assert shown in terminal.getvalue()
