"""``fasttrain bench step`` that is stopped half way, from its words to its record."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fasttrain.bench import step
from fasttrain.cli import main
from fasttrain.errors import MachineError, Problem
from tests.bench.test_bench_step import SMALL

ROOT = Path(__file__).resolve().parents[2]


def terminated_after(line: str, words: list[str], record: Path) -> tuple[str, dict[str, Any]]:
    """What a benchmark prints, and its record, when SIGTERM comes after a line that begins like this."""
    command = [sys.executable, "-m", "fasttrain", "bench", *words, "--json", str(record)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        lines.append(text)
        if text.startswith(line):
            break
    process.send_signal(signal.SIGTERM)
    rest, error = process.communicate(timeout=60)
    assert process.returncode == 143, error
    assert error.splitlines() == ["stopped: by SIGTERM; what was measured is published above"]
    return "".join(lines) + rest, json.loads(record.read_text())


def test_sigterm_in_the_trainings_of_bench_step(tmp_path: Path) -> None:
    words = ["step", *SMALL, "--repeats", "1000", "--rounds", "1000", "--optimizers", "sgd,hybrid"]
    out, content = terminated_after("round 1/1000 | hybrid", words, tmp_path / "step.json")
    assert "CUT SHORT, not all was measured: SIGTERM" in out
    assert "training step, test_resnet, hybrid" in out
    assert content["cut_short"]["why"] == "SIGTERM"
    counts = {row["name"]: row["n"] for row in content["figures"] if row["unit"] == "images/s"}
    assert counts.keys() == {"step, 32 px, batch 8, sgd", "step, 32 px, batch 8, hybrid"}
    assert content["cut_short"]["missing"] == [f"{name} ({n} of 1000)" for name, n in counts.items()]
    assert content["notes"][0].startswith("cut short, not all was measured (SIGTERM); missing: step, 32 px")


def test_an_error_of_the_second_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = step.measure_arm

    def full(arm: Any, *rest: Any, **named: Any) -> float:
        if arm.label == "hybrid":
            raise MachineError(Problem("training at 32 px does not fit", "trainer.device_batch_size=4"))
        return whole(arm, *rest, **named)

    monkeypatch.setattr(step, "measure_arm", full)
    record = tmp_path / "step.json"
    words = ["--repeats", "2", "--optimizers", "sgd,hybrid", "--bare", "--json", str(record)]
    assert main(["bench", "step", *SMALL, *words]) == 4
    out, error = capsys.readouterr()
    assert error == "environment error: training at 32 px does not fit\n    fix: trainer.device_batch_size=4\n"
    assert "CUT SHORT, not all was measured: environment error: training at 32 px does not fit" in out
    content = json.loads(record.read_text())
    figures = {(row["name"], row["unit"]): row["n"] for row in content["figures"]}
    assert figures["step, 32 px, batch 8, sgd", "images/s"] == 1
    assert not any("hybrid" in name for name, _ in figures)
    assert content["cut_short"]["missing"] == [
        "step, 32 px, batch 8, sgd (1 of 2)",
        "bare loop, 32 px, batch 8, sgd (1 of 2)",
        "step, 32 px, batch 8, hybrid (0 of 2)",
        "bare loop, 32 px, batch 8, hybrid (0 of 2)",
    ]
