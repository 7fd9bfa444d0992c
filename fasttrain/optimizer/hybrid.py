"""SGD with an RMS-scaled part whose share falls from one to zero."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fasttrain.optimizer.launches import Launches, Scaling
from fasttrain.optimizer.multi_tensor import (
    Members,
    MultiTensorOptimizer,
    Scalar,
    Tensors,
    add_scaled_,
    slots_of,
    with_decay,
)


class HybridSGD(MultiTensorOptimizer):
    """Akiba's RMSprop warm-up, continuous and bias-corrected, with Nesterov momentum over both parts.

    With gradient g, weight w, SGD's share s and the running average v of g^2 (v = 0 and q = 0 at first)::

        v = beta v + (1 - beta) g^2                    beta = rms_decay
        q = beta q + (1 - beta)                        = 1 - beta^t: v / q is the unbiased average
        r = g / (sqrt(v / q) + eps)                    eps = rms_eps
        u = s (g + weight_decay w) + (1 - s) (rms_lr / lr) r
        b = momentum b + u
        w = w - lr (u + momentum b)                    or w - lr b without Nesterov

    The division by lr makes ``rms_lr`` the adaptive part's own learning rate, whatever the schedule does.
    Weight decay is coupled, as in ``torch.optim.SGD``, and belongs to SGD's part: it comes in with s.
    Where lr is 0 the adaptive part is left out.

    Where the share is 1, or ``rms_lr`` is 0, v and q rest and the update is that of
    ``torch.optim.SGD(foreach=True)`` to the bit; over lists, a share held as a tensor moves v and q always.

    Each group carries ``sgd_share`` (s, set before each step, see ``sgd_share()``) and ``rms_weight`` (q; all
    parameters of a group are taken to have had a gradient in the same steps).

    Args:
        params: Parameters or groups.
        lr: Learning rate of SGD's part.
        momentum: Share kept of the last update.
        weight_decay: Added to the gradient, times the weight.
        nesterov: Look-ahead momentum.
        transition_center_epochs: Where both parts have half; kept for ``set_hyperparameters``.
        transition_period_epochs: Length scale of the transition, likewise.
        rms_lr: Learning rate of the adaptive part.
        rms_decay: Share kept of v per step.
        rms_eps: Added to the root.

    Source: arXiv:1711.04325, section 3.1; no bias correction there, so that the first steps are ten times
    as long. Momentum over both parts: its public code.
    """

    moving = ("lr", "momentum", "sgd_share", "rms_weight")
    counters = ("rms_weight",)

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        transition_center_epochs: float,
        transition_period_epochs: float,
        rms_lr: float = 3e-4,
        rms_decay: float = 0.99,
        rms_eps: float = 1e-8,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "transition_center_epochs": transition_center_epochs,
            "transition_period_epochs": transition_period_epochs,
            "rms_lr": rms_lr,
            "rms_decay": rms_decay,
            "rms_eps": rms_eps,
            "sgd_share": 1.0,
            "rms_weight": 0.0,
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        """One update of one group, as the class says."""
        directions = with_decay(grads, params, group["weight_decay"])
        share = group["sgd_share"]
        if group["rms_lr"] != 0 and (isinstance(share, Tensor) or share != 1):
            directions = torch._foreach_mul(directions, share)
            adaptive = self._adaptive_part(group, params, grads)
            add_scaled_(directions, adaptive, _adaptive_scale(group))
        self.descend(group, params, directions)

    def launch(self, launches: Launches, members: Members, scaling: Scaling) -> bool:
        """One update of all groups, as the class says."""
        params = [param for _, param in members]
        averages = [self.averages(key, params) for key in ("momentum_buffer", "square_average")]
        table = launches.table("all", *slots_of(members, *averages))
        if table is None:
            return False
        launches.sgd(table, scaling, hybrid=True)
        arguments = launches.scaling(scaling)
        launches.kernels.advance_rms_weight[(len(self.param_groups),)](
            launches.numbers.table, arguments["found_inf"], SCALED=arguments["SCALED"]
        )
        return True

    def _adaptive_part(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> Tensors:
        """``r / sqrt(q)``, after the step of v and q; ``_adaptive_scale`` has the other ``sqrt(q)``."""
        beta = group["rms_decay"]
        squares = self.averages("square_average", params)
        torch._foreach_mul_(squares, beta)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta)
        if isinstance(group["rms_weight"], Tensor):
            group["rms_weight"].mul_(beta).add_(1 - beta)
        else:
            group["rms_weight"] = beta * group["rms_weight"] + (1 - beta)
        # g / (sqrt(v / q) + eps) = sqrt(q) g / (sqrt(v) + eps sqrt(q)): one pass over the tensors less.
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["rms_eps"] * group["rms_weight"] ** 0.5)
        return torch._foreach_div(grads, roots)


def _adaptive_scale(group: dict[str, Any]) -> Scalar:
    """``(1 - s) (rms_lr / lr) sqrt(q)``, zero where lr is."""
    scale = (1 - group["sgd_share"]) * group["rms_lr"] * group["rms_weight"] ** 0.5
    lr = group["lr"]
    if isinstance(lr, Tensor):
        return torch.where(lr > 0, scale / lr, 0.0)
    return scale / lr if lr > 0 else 0.0
