"""The Triton kernels in Triton's interpreter, where there is Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def release(package: str) -> tuple[int, ...]:
    """Major and minor version of a package; none where it is missing."""
    try:
        return tuple(int(part) for part in version(package).split(".")[:2])
    except PackageNotFoundError:
        return ()


@pytest.mark.skipif(not release("triton"), reason="no Triton on this platform")
@pytest.mark.skipif(
    release("triton") < (3, 8) and release("numpy") >= (2, 4),
    reason="the interpreter of this Triton cannot count loops with this numpy",
)
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
