"""The arithmetic that the own optimizers share: SGD with momentum over lists of tensors.

The operations and their order are those of ``torch.optim.SGD(foreach=True)``, so that an optimizer whose
extra part is off equals it to the bit. Numbers that move during a run (learning rate, momentum, ...) may be
floats or 0-dim tensors on the parameters' device. A float is part of a captured step; a tensor is read at
each replay, so that filling it is enough.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Scalar = float | Tensor
Tensors = list[Tensor] | tuple[Tensor, ...]


class MultiTensorOptimizer(torch.optim.Optimizer):
    """Base of the own optimizers: walks the groups and hands lists of tensors to ``update``.

    A parameter without gradient is left alone in that step.
    """

    # Keys of a group whose values move from step to step.
    moving: tuple[str, ...] = ("lr", "momentum")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; ``closure`` recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self.update(group, params, [param.grad for param in params])
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the tensors that exist, so that a step captured before goes on with the loaded values.

        An average that the loaded state lacks starts again at zero. Moving numbers stay floats or tensors as
        they are here, whatever they were when the state was saved.
        """
        numbers = [{key: group[key] for key in self.moving} for group in self.param_groups]
        averages = {param: dict(state) for param, state in self.state.items()}
        super().load_state_dict(state_dict)
        for group, own in zip(self.param_groups, numbers, strict=True):
            for key, number in own.items():
                loaded = float(group[key])
                group[key] = number.fill_(loaded) if isinstance(number, Tensor) else loaded
        for param, tensors in averages.items():
            for key, tensor in tensors.items():
                tensor.copy_(self.state[param].get(key, torch.zeros_like(tensor)))
                self.state[param][key] = tensor

    @abstractmethod
    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        """Change ``params`` in place; ``grads`` are read only."""

    def averages(self, key: str, params: Tensors) -> Tensors:
        """The running averages called ``key`` of ``params``; zeros, laid out as the parameter, at first."""
        for param in params:
            if key not in self.state[param]:
                self.state[param][key] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return [self.state[param][key] for param in params]

    def descend(self, group: dict[str, Any], params: Tensors, directions: Tensors) -> None:
        """SGD's last half: momentum over ``directions`` (read only), then the step along them."""
        if isinstance(group["momentum"], Tensor) or group["momentum"] != 0:
            buffers = self.averages("momentum_buffer", params)
            directions = with_momentum(directions, buffers, group["momentum"], nesterov=group["nesterov"])
        add_scaled_(params, directions, -group["lr"])


def with_decay(grads: Tensors, params: Tensors, weight_decay: float) -> Tensors:
    """``g + weight_decay * w``; the gradients themselves where nothing decays."""
    return torch._foreach_add(grads, params, alpha=weight_decay) if weight_decay != 0 else grads


def with_momentum(directions: Tensors, buffers: Tensors, momentum: Scalar, *, nesterov: bool) -> Tensors:
    """Add ``directions`` u to the momentum buffers b in place.

    Returns:
        ``u + momentum * b`` of the new b with Nesterov's look-ahead, else b.
    """
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, directions)
    if not nesterov:
        return buffers
    if isinstance(momentum, Tensor):
        return torch._foreach_add(directions, torch._foreach_mul(buffers, momentum))
    return torch._foreach_add(directions, buffers, alpha=momentum)


def add_scaled_(targets: Tensors, others: Tensors, scale: Scalar) -> None:
    """``targets += scale * others``, in place."""
    if isinstance(scale, Tensor):
        torch._foreach_add_(targets, torch._foreach_mul(others, scale))
    else:
        torch._foreach_add_(targets, others, alpha=scale)
