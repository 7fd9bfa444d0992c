"""Layer-wise learning rates with a trust ratio that is clamped on both sides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fasttrain.optimizer.launches import CHUNK, Launches, Scaling
from fasttrain.optimizer.multi_tensor import Members, MultiTensorOptimizer, Tensors, slots_of, with_decay

# Keeps 0 / 0 out where a layer has neither weight nor gradient; far below any norm that occurs.
TINY = 1e-30


class RectifiedLARS(MultiTensorOptimizer):
    """LARS whose trust ratio stays within bounds, with Nesterov momentum.

    With gradient g and weight w of one tensor, and norms over the whole tensor::

        ratio = clip(eta |w| / (|g| + weight_decay |w|), min_trust_ratio, max_trust_ratio)
        u = ratio (g + weight_decay w)
        b = momentum b + u
        w = w - lr (u + momentum b)                    or w - lr b without Nesterov

    A group with ``trust`` false (norm scales and biases) has ratio 1: its vectors start at zero or one, where
    a ratio of norms says nothing (a zero vector would stay at the smallest ratio). ``lr_scale`` keeps it off
    the raw learning rate. With both bounds 1 the update is that of ``torch.optim.SGD(foreach=True)`` to the
    bit.

    Args:
        params: Parameters or groups.
        lr: Learning rate before the ratio.
        momentum: Share kept of the last update.
        weight_decay: Added to the gradient, times the weight.
        nesterov: Look-ahead momentum.
        eta: Trust coefficient.
        min_trust_ratio: Lower bound of the ratio.
        max_trust_ratio: Upper bound of the ratio.
        trust: Whether the ratio is applied; the groups' own value goes first.

    Source: arXiv:1708.03888 (LARS); the bounds are fields of dawn-bench-entries, ImageNet/train,
    alibabacloud_resnet50_gn6e_16_machine_tensorflow.json, whose clipping is read from their names.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        eta: float = 8e-4,
        min_trust_ratio: float = 1e-5,
        max_trust_ratio: float = 1.0,
        trust: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "eta": eta,
            "min_trust_ratio": min_trust_ratio,
            "max_trust_ratio": max_trust_ratio,
            "trust": trust,
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        """One update of one group, as the class says."""
        directions = with_decay(grads, params, group["weight_decay"])
        if group["trust"]:
            ratios = trust_ratios(
                params,
                grads,
                weight_decay=group["weight_decay"],
                eta=group["eta"],
                bounds=(group["min_trust_ratio"], group["max_trust_ratio"]),
            )
            directions = torch._foreach_mul(directions, list(ratios.unbind()))
        self.descend(group, params, directions)

    def launch(self, launches: Launches, members: Members, scaling: Scaling) -> bool:
        """One update of all groups, as the class says; sums of squares are in fp64, in an order that is fixed."""
        buffers = self.averages("momentum_buffer", [param for _, param in members])
        table = launches.table("all", *slots_of(members, buffers))
        if table is None:
            return False
        partials = launches.scratch("partials", 2 * table.num_blocks)
        ratios = launches.scratch("ratios", table.num_tensors)
        launches.over_blocks(launches.kernels.lars_squares, table, partials=partials)
        launches.kernels.lars_ratios[(table.num_tensors,)](
            table.groups,
            table.first_blocks,
            launches.numbers.table,
            partials,
            ratios,
            launches.grad_scale(scaling),
            TINY=TINY,
            SCALED=scaling.grad_scale is not None,
            CHUNK=CHUNK,
        )
        launches.sgd(table, scaling, ratios=ratios)
        return True


def trust_ratios(
    params: Tensors, grads: Tensors, *, weight_decay: float, eta: float, bounds: tuple[float, float]
) -> Tensor:
    """The clamped ratio of each tensor: ``[len(params)]``, on their device, without a look from the host."""
    weight_norms = torch.stack(torch._foreach_norm(params))
    grad_norms = torch.stack(torch._foreach_norm(grads))
    ratios = eta * weight_norms / (grad_norms + weight_decay * weight_norms).clamp(min=TINY)
    return ratios.clamp(*bounds)
