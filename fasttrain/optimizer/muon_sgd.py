"""Orthogonalised momentum for weights that are matrices, SGD for the rest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fasttrain.optimizer.launches import CHUNK, Launches, Scaling
from fasttrain.optimizer.matrix_stacks import MatrixStacks
from fasttrain.optimizer.multi_tensor import (
    Members,
    MultiTensorOptimizer,
    Tensors,
    add_scaled_,
    slots_of,
    with_decay,
    with_momentum,
)
from fasttrain.optimizer.newton_schulz import EPS, newton_schulz, shape_scale
from fasttrain.optimizer.tensor_table import TensorTable


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
        self._stacks: dict[tuple[int, ...], MatrixStacks] = {}

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

    def launch(self, launches: Launches, members: Members, scaling: Scaling) -> bool:
        """One update of all groups, as the class says."""
        buffers = self.averages("momentum_buffer", [param for _, param in members])
        both = list(zip(members, buffers, strict=True))
        matrices, others = (
            [(member, buffer) for member, buffer in both if self.param_groups[member[0]]["matrix"] == matrix]
            for matrix in (True, False)
        )
        stacks = self._stacks_of([member for member, _ in matrices]) if matrices else None
        tables = []
        for name, part in (("matrices", matrices), ("others", others)):
            if part:
                slots, groups = slots_of([member for member, _ in part], [buffer for _, buffer in part])
                tables.append((name, launches.table(name, slots, groups, stacks if name == "matrices" else None)))
        if any(table is None for _, table in tables):
            return False
        for name, table in tables:
            assert table is not None
            if name == "others":
                launches.sgd(table, scaling)
            else:
                assert stacks is not None
                normalized = [param for (index, param), _ in matrices if self.param_groups[index]["normalize_weights"]]
                self._launch_matrices(launches, table, stacks, scaling, normalized)
        return True

    def _stacks_of(self, matrices: Members) -> MatrixStacks:
        """The stacks of these matrices; those of other sets of matrices stay, since a capture may use them."""
        key = tuple(id(param) for _, param in matrices)
        if key not in self._stacks:
            groups = [self.param_groups[index] for index, _ in matrices]
            self._stacks[key] = MatrixStacks(
                [param for _, param in matrices],
                steps=[group["newton_schulz_steps"] for group in groups],
                dtype=_dtype(groups[0]["newton_schulz_dtype"], matrices[0][1]),
            )
        return self._stacks[key]

    @staticmethod
    def _launch_matrices(
        launches: Launches, table: TensorTable, stacks: MatrixStacks, scaling: Scaling, normalized: Tensors
    ) -> None:
        kernels, arguments = launches.kernels, launches.scaling(scaling)
        grad_scale, found_inf, scaled = arguments["grad_scale"], arguments["found_inf"], arguments["SCALED"]
        half = stacks.dtype == torch.bfloat16
        partials = launches.scratch("partials", table.num_blocks)
        inverse_norms = launches.scratch("inverse_norms", table.num_tensors)
        launches.over_blocks(kernels.muon_momentum, table, partials=partials, **arguments)
        kernels.muon_inverse_norms[(table.num_tensors,)](
            table.first_blocks, partials, inverse_norms, EPS=EPS, CHUNK=CHUNK
        )
        launches.over_blocks(
            kernels.muon_stack,
            table,
            inverse_norms=inverse_norms,
            grad_scale=grad_scale,
            HALF=half,
            SCALED=scaled,
        )
        stacks.orthogonalise()
        if normalized:
            # In a step that the scaler refuses too: the next one would find them as they are then.
            normalize_to_root_of_rows_(normalized)
        launches.over_blocks(
            kernels.muon_apply,
            table,
            shape_scales=stacks.shape_scales,
            found_inf=found_inf,
            HALF=half,
            SCALED=scaled,
        )


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
        orthogonal *= shape_scale(rows, columns)
        for index, matrix in zip(members, orthogonal.unbind(), strict=True):
            results[index] = _as_weight(matrix, like=tensors[index])
    return results


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
