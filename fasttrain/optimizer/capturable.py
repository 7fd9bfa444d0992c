"""Whether an optimizer's step can be part of a CUDA graph."""

from __future__ import annotations

import torch

from fasttrain.optimizer.multi_tensor import MultiTensorOptimizer


def why_not_capturable(optimizer: torch.optim.Optimizer, *, scaling: bool, moving_momentum: bool) -> str | None:
    """What stands against a capture; None for nothing. torch's optimizers that can are told to.

    Args:
        optimizer: Before its first step.
        scaling: The loss is scaled (fp16): the optimizer must skip a step by itself, on the device.
        moving_momentum: The schedule changes the momentum, which libraries hold as a number of the host.
    """
    name = type(optimizer).__name__
    if scaling and not getattr(optimizer, "_step_supports_amp_scaling", False):
        return f"with fp16's loss scaling {name} asks the host at each step whether it is to be skipped"
    if isinstance(optimizer, MultiTensorOptimizer):
        return None
    if moving_momentum:
        return f"{name} takes momentum as a number of the host, and the schedule moves it"
    if isinstance(optimizer, torch.optim.SGD):
        return None
    if type(optimizer).__module__.startswith("torch.optim") and "capturable" in optimizer.defaults:
        for group in optimizer.param_groups:
            group["capturable"] = True
        return None
    return f"{name} works with numbers of the host at each step"
