"""What the own optimizers share: SGD with momentum over many tensors, by lists or by kernels.

Over lists the operations and their order are those of ``torch.optim.SGD(foreach=True)``, so that an optimizer
whose extra part is off equals it to the bit. On a GPU the kernels of ``kernels.py`` do the same in one pass over
the memory, with the roundings of ``torch.optim.SGD(fused=True)``.

Numbers that move during a run (learning rate, momentum, ...) may be floats or 0-dim tensors on the parameters'
device. A float is part of a captured step; a tensor is read at each replay, so that filling it is enough.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fasttrain.optimizer.launches import Launches, Scaling, load_kernels

Scalar = float | Tensor
Tensors = list[Tensor] | tuple[Tensor, ...]
Members = list[tuple[int, Tensor]]


class MultiTensorOptimizer(torch.optim.Optimizer):
    """Base of the own optimizers: hands all tensors to the kernels, or lists of tensors to ``update``.

    The kernels take fp32 parameters on a GPU, dense in either memory order, with gradients alike; for anything else,
    and without Triton, ``update`` works group by group. A parameter without gradient is left alone in that step.

    With torch's ``GradScaler`` it unscales by itself and leaves a step with an infinity out: by the kernels without
    a look from the host, by lists after one, as the scaler itself looks.
    """

    # Keys of a group whose values move from step to step.
    moving: tuple[str, ...] = ("lr", "momentum")

    # Those among them that an update moves by itself: the kernels keep them on the device.
    counters: tuple[str, ...] = ()

    # GradScaler hands its scale over as the attributes grad_scale and found_inf.
    _step_supports_amp_scaling = True

    _launches: Launches | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; ``closure`` recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        members = [
            (index, param)
            for index, group in enumerate(self.param_groups)
            for param in group["params"]
            if param.grad is not None
        ]
        scaling = Scaling(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        if members and not self._update_by_kernels(members, scaling):
            self._update_by_lists(scaling)
        return loss

    def _update_by_kernels(self, members: Members, scaling: Scaling) -> bool:
        launches = self.launches()
        if launches is None:
            return False
        with launches.on_device():
            launches.numbers.hold(self.param_groups, self.counters)
            launches.numbers.write(self.param_groups)
            return self.launch(launches, members, scaling)

    def _update_by_lists(self, scaling: Scaling) -> None:
        if scaling.found_inf is not None and bool(scaling.found_inf):
            return
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            grads: Tensors = [param.grad for param in params]
            if scaling.grad_scale is not None:
                # As the scaler does it: the inverse in fp64, rounded once.
                grads = torch._foreach_mul(grads, scaling.grad_scale.double().reciprocal().to(grads[0].dtype))
            self.update(group, params, grads)

    def launches(self) -> Launches | None:
        """The kernels and their tables on the parameters' device; None where there are none."""
        if self._launches is None:
            device = self.param_groups[0]["params"][0].device
            kernels = load_kernels(device.type)
            if kernels is not None:
                self._launches = Launches(kernels, len(self.param_groups), device)
        return self._launches

    def hold_on_device(self) -> None:
        """Turn the moving numbers into 0-dim tensors beside the parameters; see ``build.hold_on_device``.

        Those of the kernels are fp64, in which they compute; lists are fastest with numbers of their own type.
        """
        launches = self.launches()
        if launches is not None:
            launches.numbers.hold(self.param_groups, self.moving)
            return
        for group in self.param_groups:
            for key in self.moving:
                if not isinstance(group[key], Tensor):
                    group[key] = torch.tensor(group[key], dtype=torch.float32, device=group["params"][0].device)

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
                value = float(group[key])
                group[key] = number.fill_(value) if isinstance(number, Tensor) else value
        for param, tensors in averages.items():
            for key, tensor in tensors.items():
                loaded = self.state[param].get(key)
                # torch's SGD saves None where it has no momentum.
                tensor.copy_(torch.zeros_like(tensor) if loaded is None else loaded)
                self.state[param][key] = tensor

    @abstractmethod
    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        """Change ``params`` of one group in place; ``grads`` are read only."""

    @abstractmethod
    def launch(self, launches: Launches, members: Members, scaling: Scaling) -> bool:
        """The update of all ``members``, (index of the group, parameter), by kernels; False: not these tensors."""

    def averages(self, key: str, params: Tensors) -> Tensors:
        """The running averages called ``key`` of ``params``; zeros, laid out as the parameter, at first."""
        for param in params:
            if self.state[param].get(key) is None:
                if param.is_cuda and torch.cuda.is_current_stream_capturing():
                    raise RuntimeError(f"{key} would start at zero in each replay; take one step before the capture")
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


def slots_of(members: Members, *averages: Tensors) -> tuple[list[Tensors], list[int]]:
    """What ``Launches.table`` takes: weights, gradients and the averages of each, and the groups' indices."""
    params = [param for _, param in members]
    grads = [param.grad for param in params if param.grad is not None]
    return [params, grads, *averages], [index for index, _ in members]
