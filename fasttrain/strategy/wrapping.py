"""DistributedDataParallel built for a plan, and built anew in place: whoever holds it keeps holding it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fasttrain.strategy.hook import CommState, accel_hook
from fasttrain.strategy.plan import CommPlan, bucket_caps_mb

# Set while this module builds: the one-line form must not take such an object for a user's own.
_building: ContextVar[bool] = ContextVar("fasttrain_building_ddp", default=False)

# The constructor as torch has it, and what it takes in this version of torch.
_construct = DistributedDataParallel.__init__
_PARAMETERS = inspect.signature(_construct).parameters

# What torch.nn.Module keeps of its own on every object: hooks that a user has registered, train or eval.
_MODULE_STATE = frozenset(nn.Module().__dict__) - {"_modules"}


def is_building() -> bool:
    """Whether the object that is being made is one of this module's."""
    return _building.get()


def no_buffer_sync() -> dict[str, Any]:
    """DDP's arguments that leave buffers alone at each step; torch 2.13 has renamed the first of these names."""
    name = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"
    return {name: False}


def arguments_for(module: nn.Module, plan: CommPlan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """DDP's keyword arguments for a plan.

    Args:
        module: That is wrapped.
        plan: Its bucket size and ``lean`` count here.
        arguments: The user's own, kept where the plan has nothing to say.
    """
    chosen = dict(arguments)
    if plan.bucket_mb is not None:
        # The last layer's gradients are ready first.
        sizes = [p.numel() * p.element_size() for p in reversed(list(module.parameters())) if p.requires_grad]
        chosen.pop("bucket_cap_mb", None)
        chosen["bucket_cap_mb_list"] = bucket_caps_mb(sizes, plan.bucket_mb)
    if plan.lean:
        chosen["gradient_as_bucket_view"] = True
        if "batched_grad_copy" in _PARAMETERS:
            chosen["batched_grad_copy"] = True
    return chosen


def wrap(
    module: nn.Module, plan: CommPlan, arguments: Mapping[str, Any], state: CommState | None
) -> DistributedDataParallel:
    """A module wrapped for a plan.

    Args:
        module: To be wrapped.
        plan: For which.
        arguments: DDP's own.
        state: The hook's; needed where the plan uses the hook.
    """
    with _ours():
        wrapped = DistributedDataParallel(module, **arguments_for(module, plan, arguments))
    if plan.uses_hook:
        add_hook(wrapped, state)
    return wrapped


def rewrap(
    wrapped: DistributedDataParallel,
    plan: CommPlan,
    arguments: Mapping[str, Any],
    state: CommState | None,
    *,
    stream: Any = None,
) -> None:
    """Build ``wrapped`` anew, in place, for another plan: other buckets, with or without the hook.

    To be called between steps, at the same step on all ranks. Gradients that are there stay what they are: the new
    buckets take them over with the next backward pass.

    Args:
        wrapped: Whose reducer is exchanged; the wrapped module stays.
        plan, arguments, state: As for ``wrap``.
        stream: CUDA stream on which gradients are to be accumulated: not the default one where a step is captured
            later. None for the current one.
    """
    if wrapped.device.type == "cuda":
        # Kernels of the last step may still read the buckets that are given up.
        torch.cuda.synchronize(wrapped.device)
    # The old buckets go first: both together may not fit.
    wrapped.reducer._remove_autograd_hooks()
    del wrapped.reducer, wrapped.logger
    given = {**arguments_for(wrapped.module, plan, arguments), "init_sync": False}
    with _ours(), contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        fresh = DistributedDataParallel(wrapped.module, **given)
    if plan.uses_hook:
        add_hook(fresh, state)
    kept = {name: value for name, value in wrapped.__dict__.items() if name in _MODULE_STATE}
    wrapped.__dict__.update({**fresh.__dict__, **kept})


def add_hook(wrapped: DistributedDataParallel, state: CommState | None) -> None:
    """Give an object that has none the hook; only a build takes it away again."""
    assert state is not None, "a plan with a hook needs its state"
    wrapped.register_comm_hook(state, accel_hook)


def why_not_rewrapped(wrapped: DistributedDataParallel, *, same_buckets: bool = False) -> str | None:
    """What stands against building an object anew; None for nothing.

    Args:
        wrapped: The object.
        same_buckets: Its buckets will be the same: then compiled graphs, which are cut where buckets end, still fit.
    """
    if wrapped.static_graph:
        return "static_graph=True"
    if wrapped.mixed_precision is not None:
        return "DDP's own mixed precision"
    if wrapped._delay_all_reduce_params or getattr(wrapped, "_delay_all_reduce_all_params", False):
        return "delayed all-reduces"
    if wrapped._use_python_reducer:
        return "torch._dynamo's python_reducer"
    if wrapped._join_config.enable:
        return "join()"
    if hasattr(wrapped, "buffer_hook"):
        return "a hook for buffers"
    if is_compiled(wrapped.module) and not same_buckets:
        return "torch.compile"
    return None


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has a part in the module: its graphs and DDP's buckets are cut together."""
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def has_foreign_hook(wrapped: DistributedDataParallel) -> bool:
    """Whether somebody else has registered a communication hook."""
    return any(hook is not accel_hook for hook, _ in wrapped._comm_hooks)


def optimizer_in_backward(module: nn.Module) -> bool:
    """Whether updates happen inside the backward pass, where a gradient must not be averaged later."""
    return any(hasattr(parameter, "_in_backward_optimizers") for parameter in module.parameters())


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    token = _building.set(True)
    try:
        yield
    finally:
        _building.reset(token)
