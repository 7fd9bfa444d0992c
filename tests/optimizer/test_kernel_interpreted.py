"""The kernels' tests where there is no GPU: in Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TESTS = Path(__file__).with_name("test_kernel.py")


def interpreted(*choice: str) -> str:
    """Output of the tests, all of which pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *choice, str(TESTS)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "-v"], capture_output=True, text=True, env=environment, cwd=TESTS.parents[2], check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_kernels_in_tritons_interpreter_in_short() -> None:
    assert "4 passed" in interpreted("-k", "few_ulps and nesterov")


@pytest.mark.slow
def test_all_of_the_kernels_tests_in_tritons_interpreter() -> None:
    assert " passed" in interpreted()
