"""A GPU on which a program failed: what led to it, and how to go on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from fasttrain.errors import DeviceLost, Problem, first_line


def failure_of_device(error: BaseException) -> BaseException | None:
    """The first failure of the GPU among an error and those that led to it: all later ones only repeat it."""
    found: BaseException | None = None
    step: BaseException | None = error
    while step is not None:
        found = step if isinstance(step, torch.AcceleratorError) else found
        step = step.__cause__ or step.__context__
    return found


def device_lost(cause: BaseException, run_dir: Path) -> DeviceLost:
    """The error that ends the run, with the command that goes on with it."""
    what = f"the GPU gave up: {first_line(cause)}"
    again = f"the same command with run_dir={run_dir} resume=auto goes on from the last whole checkpoint"
    # Seen with CUDA 13.0 on an H200 that programs took turns on: an illegal instruction inside cuBLAS's products.
    shared = "best with no other program on the GPU"
    return DeviceLost(
        Problem(what, f"{again}, {shared}; if it happens again, trainer.capture=false and debug=true say more")
    )


@contextlib.contextmanager
def closing_hides_nothing() -> Iterator[None]:
    """Let an error that is on its way pass, whatever closing finds: with a lost GPU all that asks it fails."""
    on_its_way = sys.exc_info()[1]
    try:
        yield
    except Exception:
        if on_its_way is None:
            raise
