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
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fasttrain.errors import ConfigError, Problem
from fasttrain.strategy.captured_call import CapturedCall
from fasttrain.strategy.session import CommSession, share_buffers
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.sockets import choose_sockets
from fasttrain.strategy.streams import prepare_concurrent_nccl
from fasttrain.strategy.topology import detect_topology
from fasttrain.strategy.wrapping import is_building, no_buffer_sync

log = logging.getLogger("fasttrain")

VARIABLE = "FASTTRAIN_ACCELERATE"

# As torch has them.
_construct = DistributedDataParallel.__init__
_forward = DistributedDataParallel.forward
_no_sync = DistributedDataParallel.no_sync
_init_process_group = dist.init_process_group


class _Driver:
    """Calls a session at the steps of a script's own loop: a forward pass whose gradients will be reduced."""

    def __init__(self, wrapped: DistributedDataParallel, arguments: dict[str, Any], settings: CommSettings) -> None:
        self.session: CommSession | None = None
        self.synced_once = False
        self._settings = settings
        self._arguments = arguments
        self._steps = 0
        self._interrupted = False
        self._trained = False
        if settings.sync_buffers == "eval":
            own = {name: value for name, value in arguments.items() if not name.endswith("_buffers")}
            self._arguments = {**own, **no_buffer_sync()}
            wrapped.broadcast_buffers = False

    def before_forward(self, wrapped: DistributedDataParallel) -> None:
        if torch.compiler.is_compiling() or wrapped._join_config.enable or _capturing():
            return
        if not (wrapped.training and torch.is_grad_enabled()):
            if self._trained and self._settings.sync_buffers == "eval":
                # All ranks are here, as they would have to be for stock DDP's own broadcast.
                share_buffers(wrapped.module, wrapped.process_group)
            self._interrupted, self._trained = True, False
            return
        self._trained = True
        if not wrapped.require_backward_grad_sync:
            return
        if self.session is None:
            self.session = CommSession(
                wrapped, self._arguments, self._settings, detect_topology(), timeout=_timeout(wrapped)
            )
        shape: tuple[int, ...] = ()
        self.session.before_step(self._steps, shape, interrupted=self._interrupted)
        self._steps += 1
        self._interrupted = False


_drivers: weakref.WeakKeyDictionary[DistributedDataParallel, _Driver] = weakref.WeakKeyDictionary()
_settings = CommSettings(sync_buffers="step")
_is_on = False


def on() -> None:
    """Accelerate objects made from here on; the import calls it."""
    global _is_on
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("fasttrain: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    DistributedDataParallel.__init__ = _accelerated_construct  # type: ignore[method-assign]
    DistributedDataParallel.forward = _accelerated_forward  # type: ignore[method-assign]
    DistributedDataParallel.no_sync = _accelerated_no_sync  # type: ignore[method-assign]
    dist.init_process_group = _accelerated_init_process_group
    if not _is_on and os.environ.get("RANK", "0") == "0":
        log.info("DistributedDataParallel is tuned in its first steps; %s=off leaves it alone", VARIABLE)
    _is_on = True


def off() -> None:
    """Leave objects made from here on as torch makes them; those that are accelerated stay as they are now."""
    global _is_on
    _is_on = False
    DistributedDataParallel.__init__ = _construct  # type: ignore[method-assign]
    DistributedDataParallel.forward = _forward  # type: ignore[method-assign]
    DistributedDataParallel.no_sync = _no_sync  # type: ignore[method-assign]
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
    return CapturedCall(step, _prepare_capture)


def plan_of(wrapped: DistributedDataParallel) -> str:
    """What is in force for an object, in words."""
    driver = _drivers.get(wrapped)
    return "stock DDP" if driver is None or driver.session is None else driver.session.describe()


def _prepare_capture(stream: Any) -> str | None:
    """Freeze all sessions, once none is tuning; None until then."""
    sessions = [driver.session for driver in _drivers.values()]
    if any(session is None or session.tuning for session in sessions):
        return None
    reasons = [session.freeze(stream) for session in sessions if session is not None]
    return next((reason for reason in reasons if reason), "")


def _accelerated_construct(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    _construct(self, *args, **kwargs)
    if is_building():
        return
    given = dict(inspect.signature(_construct).bind(self, *args, **kwargs).arguments)
    del given["self"], given["module"]
    _drivers[self] = _Driver(self, given, _settings)


functools.update_wrapper(_accelerated_construct, _construct)


def _accelerated_forward(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
    driver = _drivers.get(self)
    if driver is not None:
        driver.before_forward(self)
    return _forward(self, *inputs, **kwargs)


@contextmanager
def _accelerated_no_sync(self: DistributedDataParallel) -> Iterator[None]:
    """Stock, but that a static graph's first backward pass is reduced: torch records the graph in it."""
    driver = _drivers.get(self)
    first = driver is not None and self.static_graph and not driver.synced_once
    if driver is not None:
        driver.synced_once = True
    context: AbstractContextManager[Any] = nullcontext() if first else _no_sync(self)
    with context:
        yield


def _accelerated_init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
    """NCCL's numbers of sockets are chosen before it reads them."""
    if torch.cuda.is_available() and (backend is None or "nccl" in str(backend)):
        if _settings.allow_concurrent_nccl:
            prepare_concurrent_nccl()
        if _settings.nccl_sockets == "auto":
            choose_sockets(os.environ)
    _init_process_group(backend, *args, **kwargs)


def _timeout(wrapped: DistributedDataParallel) -> timedelta:
    options = getattr(wrapped.process_group._get_backend(wrapped.device), "options", None)
    timeout: timedelta = getattr(options, "_timeout", timedelta(minutes=30))
    return timeout


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


if os.environ.get(VARIABLE, "on").lower() not in ("off", "0", "false"):
    on()
