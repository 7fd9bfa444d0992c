"""The seconds that importing the libraries takes, and ending them, cut to what the libraries need."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# The last of the large libraries to come in.
LAST = "pytorch_lightning"

# torchmetrics, which Lightning imports, gives this module an old name back that no metric here needs (``hamming``).
UNUSED = "scipy.signal"


@contextmanager
def spared_imports() -> Iterator[None]:
    """Import torch, timm and Lightning inside without the garbage collector and without ``scipy.signal``.

    Together they make some million objects that stay to the end: the collector would go through them again and
    again while they are made, at each later collection, and more than once at the interpreter's end. Here it
    rests, and what is there afterwards is frozen. A process that has imported them before runs as it is.
    """
    if LAST in sys.modules:
        yield
        return
    was_on = gc.isenabled()
    gc.disable()
    try:
        with _placeholder(UNUSED):
            yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
        # What the run has made since then goes with the process; torch alone would take the interpreter a second.
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)


@contextmanager
def _placeholder(name: str) -> Iterator[None]:
    """An empty module under ``name`` while others are imported; afterwards it can be imported as ever."""
    if name in sys.modules:
        yield
        return
    empty = ModuleType(name)
    vars(empty)["hamming"] = None
    sys.modules[name] = empty
    try:
        yield
    finally:
        if sys.modules.get(name) is empty:
            del sys.modules[name]
