"""Variables that libraries read when they are imported; set before any of them is."""

from __future__ import annotations

import os
from pathlib import Path


def prepare_environment() -> None:
    """Set what the user has not set: sleeping OpenMP threads, and a lasting place for compiled kernels."""
    # Threads that spin while they wait take the cores from the decoders and from other programs: with a second run
    # on 2 cores, quickstart fell from 900 to 30 images/s; asleep, to 450.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        # torch's own place is under /tmp, which is emptied when the machine starts.
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = Path(home) / "fasttrain" / "inductor"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return  # no home to write to: torch's own place serves
        if os.access(folder, os.W_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
