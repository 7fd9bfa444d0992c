"""Makes the accelerated strategy known to Lightning by name, without importing Lightning before it is needed."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Where Lightning keeps its registry.
MODULE = "pytorch_lightning.strategies"

NAME = "accelerated_ddp"


def register() -> None:
    """Put the strategy into Lightning's registry: now, or as soon as Lightning is imported."""
    module = sys.modules.get(MODULE)
    if module is not None and hasattr(module, "StrategyRegistry"):
        add_to(module)
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def add_to(module: ModuleType) -> None:
    """Register the name; the strategy's own module is loaded when a Trainer asks for it."""
    module.StrategyRegistry.register(NAME, make_strategy, description="DDP with tuned communication", override=True)


def make_strategy(**arguments: Any) -> Any:
    """The strategy with its defaults, as ``Trainer(strategy="accelerated_ddp")`` wants it."""
    from fasttrain.strategy.accelerated import AcceleratedDDPStrategy

    return AcceleratedDDPStrategy(**arguments)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Waits for one module to be imported, registers, and goes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, and the registration after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        add_to(module)
