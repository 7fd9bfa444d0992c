"""The seconds that importing the libraries takes, and ending them, cut to what the libraries need."""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# The last of the large libraries to come in.
LAST = "pytorch_lightning"

# torchmetrics, which Lightning imports, gives this module an old name back (``hamming``), for metrics of speech.
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


class _Placeholder(ModuleType):
    """Stands in ``sys.modules`` for a module that is imported once somebody asks for more than the old name."""

    hamming = None

    def __getattr__(self, name: str) -> Any:
        # Who looks through all modules (inspect, for one) asks for such names, and wants nothing of this one.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        self.withdraw()
        return getattr(importlib.import_module(self.__name__), name)

    def withdraw(self) -> None:
        """Let the module be imported as ever."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


@contextmanager
def _placeholder(name: str) -> Iterator[None]:
    if name in sys.modules:
        yield
        return
    placeholder = _Placeholder(name)
    sys.modules[name] = placeholder
    try:
        yield
    finally:
        placeholder.withdraw()
