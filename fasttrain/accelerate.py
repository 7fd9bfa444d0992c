"""``import fasttrain.accelerate`` in a plain DDP script: communication is tuned in the first training steps.

Every ``DistributedDataParallel`` that is made after the import runs stock DDP and other ways of reducing gradients
in turn, for about 121 steps, and goes on with the fastest one, or with stock DDP where nothing wins. Each of these
steps is an ordinary training step. The launch command stays the same.

    import fasttrain.accelerate

    fasttrain.accelerate.use(wire_dtype="bf16")   # optional: names of fasttrain.strategy.settings.CommSettings
    step = fasttrain.accelerate.capture(step)     # optional: the step as a CUDA graph
    fasttrain.accelerate.off()                    # objects made from here on are stock DDP

The environment variable ``FASTTRAIN_ACCELERATE=off`` makes the import do nothing.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fasttrain.errors import ConfigError, Problem
from fasttrain.strategy.captured_call import CapturedCall
from fasttrain.strategy.driver import attach, capture_step, prepare_nccl, session_of
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.wrapping import is_building

log = logging.getLogger("fasttrain")

VARIABLE = "FASTTRAIN_ACCELERATE"

# As torch has them.
_construct = DistributedDataParallel.__init__
_init_process_group = dist.init_process_group

# A script may evaluate through the wrapped module, of which nothing here would hear: buffers go as in stock DDP.
_settings = CommSettings(sync_buffers="step")


def on() -> None:
    """Accelerate objects made from here on; the import calls it."""
    if DistributedDataParallel.__init__ is _accelerated_construct:
        return
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("fasttrain: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    DistributedDataParallel.__init__ = _accelerated_construct  # type: ignore[method-assign]
    dist.init_process_group = _accelerated_init_process_group
    if os.environ.get("RANK", "0") == "0":
        log.info("DistributedDataParallel is tuned in its first steps; %s=off leaves it alone", VARIABLE)


def off() -> None:
    """Leave objects made from here on as torch makes them; those made before stay accelerated."""
    DistributedDataParallel.__init__ = _construct  # type: ignore[method-assign]
    dist.init_process_group = _init_process_group


def use(**settings: Any) -> None:
    """Change settings for objects made from here on; the names are those of ``CommSettings``.

    Raises:
        ConfigError: There is no such setting, or its value cannot be run.
    """
    global _settings
    try:
        _settings = replace(_settings, **settings)
    except TypeError as error:
        names = ", ".join(inspect.signature(CommSettings).parameters)
        raise ConfigError(Problem(f"fasttrain.accelerate.use: {error}", f"one of {names}")) from error


def capture(step: Callable[..., Any]) -> CapturedCall:
    """A training step that replays itself as a CUDA graph once communication is tuned.

    Args:
        step: See ``fasttrain.strategy.captured_call.CapturedCall``. On a CPU it runs as it is.
    """
    return capture_step(step, None)


def plan_of(wrapped: DistributedDataParallel) -> str:
    """What is in force for an object, in words."""
    session = session_of(wrapped)
    return "stock DDP" if session is None else session.describe()


def _accelerated_construct(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    _construct(self, *args, **kwargs)
    if is_building():
        return
    given = dict(inspect.signature(_construct).bind(self, *args, **kwargs).arguments)
    del given["self"], given["module"]
    attach(self, given, _settings)


functools.update_wrapper(_accelerated_construct, _construct)


def _accelerated_init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
    """NCCL's numbers of sockets are chosen before it reads them."""
    if torch.cuda.is_available() and (backend is None or "nccl" in str(backend)):
        prepare_nccl(_settings)
    _init_process_group(backend, *args, **kwargs)


if os.environ.get(VARIABLE, "on").lower() not in ("off", "0", "false"):
    on()
