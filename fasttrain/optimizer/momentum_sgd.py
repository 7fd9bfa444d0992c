"""Torch's SGD whose momentum can move inside a captured step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fasttrain.optimizer.launches import Launches, Scaling
from fasttrain.optimizer.multi_tensor import Members, MultiTensorOptimizer, Tensors, slots_of, with_decay


class MomentumSGD(MultiTensorOptimizer):
    """The update of ``torch.optim.SGD`` without dampening, its state and its groups, so that either loads the other's.

    With gradient g and weight w::

        u = g + weight_decay w
        b = momentum b + u
        w = w - lr (u + momentum b)                    or w - lr b without Nesterov

    Torch's own takes the learning rate as a tensor but the momentum as a float, which a captured step keeps: with a
    momentum cycle it would have to be captured anew at each step.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        momentum: Share kept of the last update.
        weight_decay: Added to the gradient, times the weight.
        nesterov: Look-ahead momentum.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = True,
    ) -> None:
        # The rest are torch's keys, for which this class has one value.
        torchs = {"dampening": 0, "maximize": False, "foreach": None, "differentiable": False, "fused": None}
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, {**settings, **torchs})

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        """One update of one group, as the class says."""
        self.descend(group, params, with_decay(grads, params, group["weight_decay"]))

    def launch(self, launches: Launches, members: Members, scaling: Scaling) -> bool:
        """One update of all groups, as the class says."""
        buffers = self.averages("momentum_buffer", [param for _, param in members])
        table = launches.table("all", *slots_of(members, buffers))
        if table is None:
            return False
        launches.sgd(table, scaling)
        return True
