"""The kernels' tests where there is no GPU: in Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TESTS = Path(__file__).with_name("test_kernel.py")


def test_the_kernels_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TESTS)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=TESTS.parents[2], check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
