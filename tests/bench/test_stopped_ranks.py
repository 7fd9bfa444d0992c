"""A benchmark on two ranks, one of which does not answer any more, is published and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.test_bench_step import SMALL

ROOT = Path(__file__).resolve().parents[2]


def rank_of(pid: int) -> str:
    """``RANK`` of a process; empty where it has none."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((text[5:].decode() for text in variables if text.startswith(b"RANK=")), "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc")
def test_rank_0_publishes_although_it_waits_for_rank_1(tmp_path: Path) -> None:
    record = tmp_path / "step.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "fasttrain"]
    words = ["bench", "step", *SMALL, "--repeats", "1000", "--rounds", "1000", "--json", str(record)]
    process = subprocess.Popen([*launcher, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any(line.startswith("round 1/1000") for line in process.stdout)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (silent,) = (int(pid) for pid in children if rank_of(int(pid)) == "1")
    try:
        # It holds the sockets and says nothing: rank 0 waits in a collective, outside of Python.
        os.kill(silent, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.kill(silent, signal.SIGKILL)
            process.kill()
    assert "CUT SHORT, not all was measured: SIGTERM" in out
    assert "stopped: by SIGTERM; what was measured is published above" in error
    assert json.loads(record.read_text())["cut_short"]["why"] == "SIGTERM"
