"""The Triton kernels in Triton's interpreter, where there is Triton."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton on this platform")
def test_kernels_equal_what_runs_anywhere() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.data.crop_kernel_cases"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def test_without_a_gpu_crops_are_torchs_own() -> None:
    import torch

    from fasttrain.data.crop import Cropper

    assert not Cropper(torch.device("cpu"), torch.float32, [0.5] * 3, [0.5] * 3).has_kernel
