"""Orthogonalised momentum for weights that are matrices, SGD for the rest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fasttrain.optimizer.multi_tensor import (
    MultiTensorOptimizer,
    Tensors,
    add_scaled_,
    with_decay,
    with_momentum,
)

# Of x -> a x + b x^3 + c x^5 on the singular values: three to five rounds bring all but the smallest near 1.
# airbench94_muon.py (github.com/KellerJordan/cifar10-airbench).
NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)

# Keeps a zero matrix zero.
EPS = 1e-7


class MuonSGD(MultiTensorOptimizer):
    """Muon on groups with ``matrix`` true, SGD with Nesterov momentum on the others.

    A weight of shape ``[rows, ...]`` counts as a matrix of ``rows`` times the product of the other sides.
    With gradient g and weight w::

        b = momentum b + g
        m = g + momentum b                             or b without Nesterov
        o = newton_schulz(m) sqrt(max(1, rows / columns))
        w = (1 - lr weight_decay) w - lr o             weight decay is decoupled

    With ``normalize_weights`` each weight is scaled to a norm of sqrt(rows) before that last line.

    The other groups are updated as by ``torch.optim.SGD(foreach=True)``, with coupled weight decay. One
    schedule drives both: ``lr_scale`` in a group says how its learning rate relates to it.

    Args:
        params: Groups, see ``matrix_parameter_groups``.
        lr: Learning rate.
        momentum: Share kept of the last update.
        weight_decay: See above; the groups' own value goes first.
        nesterov: Look-ahead momentum.
        newton_schulz_steps: Rounds of the orthogonalisation.
        newton_schulz_dtype: ``fp32``, ``bf16``, or ``auto``: bf16 on a GPU, the weights' own elsewhere.
        normalize_weights: Keep each matrix's norm: only its direction is learned. For weights whose scale a
            normalisation after them takes out.
        matrix: Whether a group's weights are matrices; the groups' own value goes first.

    Source: kellerjordan.github.io/posts/muon; three rounds, momentum, normalised weights and the split by type:
    airbench94_muon.py.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        newton_schulz_steps: int = 3,
        newton_schulz_dtype: str = "auto",
        normalize_weights: bool = False,
        matrix: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "newton_schulz_steps": newton_schulz_steps,
            "newton_schulz_dtype": newton_schulz_dtype,
            "normalize_weights": normalize_weights,
            "matrix": matrix,
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        """One update of one group, as the class says."""
        if not group["matrix"]:
            self.descend(group, params, with_decay(grads, params, group["weight_decay"]))
            return
        buffers = self.averages("momentum_buffer", params)
        directions = with_momentum(grads, buffers, group["momentum"], nesterov=group["nesterov"])
        dtype = _dtype(group["newton_schulz_dtype"], params[0])
        orthogonal = orthogonalise(directions, steps=group["newton_schulz_steps"], dtype=dtype)
        if group["normalize_weights"]:
            normalize_to_root_of_rows_(params)
        if group["weight_decay"] != 0:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        add_scaled_(params, orthogonal, -group["lr"])


def normalize_to_root_of_rows_(weights: Tensors) -> None:
    """Scale each weight ``[rows, ...]`` in place to the norm sqrt(rows), that of orthonormal rows."""
    norms = torch._foreach_norm(weights)
    torch._foreach_add_(norms, EPS)
    torch._foreach_div_(weights, norms)
    torch._foreach_mul_(weights, [math.sqrt(len(weight)) for weight in weights])


def orthogonalise(tensors: Tensors, *, steps: int, dtype: torch.dtype) -> Tensors:
    """The nearest semi-orthogonal matrix of each tensor, roughly, times ``sqrt(max(1, rows / columns))``.

    Tensors of one shape are taken together as one batch.

    Args:
        tensors: Each ``[rows, ...]``, two dimensions or more.
        steps: Rounds of Newton-Schulz.
        dtype: Of the matrix products.

    Returns:
        New tensors of the given shapes, memory layouts and types, in the given order.
    """
    batches: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        batches[(tensor.shape[0], tensor[0].numel())].append(index)
    results = list(tensors)
    for (rows, columns), members in batches.items():
        batch = torch.stack([_as_matrix(tensors[index]) for index in members])
        orthogonal = newton_schulz(batch, steps=steps, dtype=dtype).to(batch.dtype).contiguous()
        orthogonal *= math.sqrt(max(1.0, rows / columns))
        for index, matrix in zip(members, orthogonal.unbind(), strict=True):
            results[index] = _as_weight(matrix, like=tensors[index])
    return results


def newton_schulz(matrices: Tensor, *, steps: int, dtype: torch.dtype) -> Tensor:
    """Push the singular values of each matrix towards 1; its singular vectors stay.

    Args:
        matrices: ``[batch, rows, columns]``.
        steps: Rounds.
        dtype: Of the matrix products; the norm is computed before, in the matrices' own.

    Returns:
        ``[batch, rows, columns]`` of ``dtype``; singular values between about 0.7 and 1.2, but for those that
        were tiny beside the others.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    # The products are of the shorter side's size when that is the rows.
    x = matrices.mT if tall else matrices
    x = (x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + EPS)).to(dtype)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def _dtype(name: str, param: Tensor) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if param.device.type == "cuda" else param.dtype
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _as_matrix(tensor: Tensor) -> Tensor:
    """``[rows, columns]``, a view also of channels-last weights: the order of the columns does not matter."""
    if _is_channels_last(tensor):
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.flatten(1)


def _as_weight(matrix: Tensor, *, like: Tensor) -> Tensor:
    """The contiguous ``matrix`` under the shape and strides of the tensor it was made of.

    Strides too, also where a side of 1 makes them arbitrary: lists of tensors whose strides differ are
    updated one by one.
    """
    if _is_channels_last(like) or like.is_contiguous():
        return matrix.as_strided(like.shape, like.stride(), matrix.storage_offset())
    return matrix.reshape(like.shape)
