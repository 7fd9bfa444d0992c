"""The kernels' tests where there is no GPU: in Triton's interpreter, chosen before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__)


@pytest.mark.parametrize(
    "names",
    [
        ["test_pooling.py", "test_channel_sums.py"],
        pytest.param(["test_kernels_in_networks.py"], marks=pytest.mark.slow),
    ],
    ids="+".join,
)
def test_the_kernels_in_tritons_interpreter(names: list[str]) -> None:
    files = [str(HERE.with_name(name)) for name in names]
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE.parents[2], check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
