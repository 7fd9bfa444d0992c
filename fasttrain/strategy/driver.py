"""What accelerates DDP objects of a script's own loop: a session each, called at the forward passes."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from fasttrain.strategy.captured_call import CapturedCall
from fasttrain.strategy.session import CommSession, share_buffers
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.sockets import choose_sockets
from fasttrain.strategy.streams import prepare_concurrent_nccl
from fasttrain.strategy.topology import detect_topology
from fasttrain.strategy.wrapping import no_buffer_sync

# As torch has them.
_forward = DistributedDataParallel.forward
_no_sync = DistributedDataParallel.no_sync


class Driver:
    """Calls a session at each optimizer step: a forward pass whose gradients will be reduced.

    Args:
        wrapped: Made by torch's constructor.
        arguments: With which it was made.
        settings: The user's.

    Attributes:
        session: None before the first step.
    """

    def __init__(self, wrapped: DistributedDataParallel, arguments: Mapping[str, Any], settings: CommSettings) -> None:
        self.session: CommSession | None = None
        self._settings, self._arguments = settings, dict(arguments)
        self._steps = 0
        self._interrupted = self._trained = self._synced_once = False
        if settings.sync_buffers == "eval":
            own = {name: value for name, value in arguments.items() if not name.endswith("_buffers")}
            self._arguments = {**own, **no_buffer_sync()}
            wrapped.broadcast_buffers = False

    def before_forward(self, wrapped: DistributedDataParallel) -> None:
        """Tell the session that a step begins; share buffers before the first pass of an evaluation."""
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
        # A script's inputs are its own affair: their shapes may be lists or change at each step.
        self.session.before_step(self._steps, None, interrupted=self._interrupted)
        self._steps += 1
        self._interrupted = False

    def must_reduce_first(self, wrapped: DistributedDataParallel) -> bool:
        """Whether this is a static graph's first backward pass, which torch cannot leave unreduced."""
        first = wrapped.static_graph and not self._synced_once
        self._synced_once = True
        return first


_drivers: weakref.WeakKeyDictionary[DistributedDataParallel, Driver] = weakref.WeakKeyDictionary()


def attach(wrapped: DistributedDataParallel, arguments: Mapping[str, Any], settings: CommSettings) -> None:
    """Accelerate one object from its next step on.

    Args:
        wrapped: Made by torch's constructor.
        arguments: With which it was made, by keyword.
        settings: See ``CommSettings``.
    """
    _drivers[wrapped] = Driver(wrapped, arguments, settings)
    DistributedDataParallel.forward = _driven_forward  # type: ignore[method-assign]
    DistributedDataParallel.no_sync = _driven_no_sync  # type: ignore[method-assign]


def session_of(wrapped: DistributedDataParallel) -> CommSession | None:
    """The session of an object; None where it is not accelerated, and before its first step."""
    driver = _drivers.get(wrapped)
    return None if driver is None else driver.session


def capture_step(step: Callable[..., Any], objects: Sequence[DistributedDataParallel] | None) -> CapturedCall:
    """A training step that replays itself as a CUDA graph once communication is tuned.

    Args:
        step: See ``CapturedCall``.
        objects: That it trains; None for all that are accelerated when it is captured.
    """

    def prepare(stream: Any) -> str | None:
        sessions = [session_of(wrapped) for wrapped in (list(_drivers) if objects is None else objects)]
        if any(session is None or session.tuning for session in sessions):
            return None
        reasons = [session.freeze(stream) for session in sessions if session is not None]
        return next((reason for reason in reasons if reason), "")

    return CapturedCall(step, prepare)


def prepare_nccl(settings: CommSettings) -> None:
    """Set what NCCL reads from the environment; before the process group is made, on all ranks."""
    if settings.allow_concurrent_nccl:
        prepare_concurrent_nccl()
    if settings.nccl_sockets == "auto":
        choose_sockets(os.environ)


def _driven_forward(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
    driver = _drivers.get(self)
    if driver is not None:
        driver.before_forward(self)
    return _forward(self, *inputs, **kwargs)


@contextlib.contextmanager
def _driven_no_sync(self: DistributedDataParallel) -> Iterator[None]:
    driver = _drivers.get(self)
    reduce_first = driver is not None and driver.must_reduce_first(self)
    with contextlib.nullcontext() if reduce_first else _no_sync(self):
        yield


def _timeout(wrapped: DistributedDataParallel) -> timedelta:
    options = getattr(wrapped.process_group._get_backend(wrapped.device), "options", None)
    timeout: timedelta = getattr(options, "_timeout", timedelta(minutes=30))
    return timeout


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
