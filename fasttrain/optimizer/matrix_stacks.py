"""Matrices of equal shapes next to each other, so that each shape is one batch of matrix products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from fasttrain.optimizer.newton_schulz import rounds, shape_scale


class MatrixStacks:
    """Owns, for each shape and number of rounds, a stack that the kernels fill and one that they read.

    Attributes:
        dtype: Of the stacks and their products.
        inputs: For each matrix its ``[rows, columns]`` to be filled, of norm 1, in the order of the weights' memory.
        outputs: For each matrix its orthogonal one, after ``orthogonalise``.
        shape_scales: ``[matrices]`` fp64, what each output is to be multiplied by.
    """

    def __init__(self, params: Sequence[Tensor], *, steps: Sequence[int], dtype: torch.dtype) -> None:
        device = params[0].device
        self.dtype = dtype
        alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for index, (param, rounds_of_it) in enumerate(zip(params, steps, strict=True)):
            alike[(param.shape[0], param[0].numel(), rounds_of_it)].append(index)
        self.inputs, self.outputs = list(params), list(params)
        self._batches: list[tuple[Tensor, Tensor, int]] = []
        scales = [1.0] * len(params)
        for (rows, columns, rounds_of_them), members in alike.items():
            filled, made = torch.zeros(2, len(members), rows, columns, dtype=dtype, device=device).unbind()
            self._batches.append((filled, made, rounds_of_them))
            for index, one, other in zip(members, filled.unbind(), made.unbind(), strict=True):
                self.inputs[index], self.outputs[index] = one, other
                scales[index] = shape_scale(rows, columns)
        self.shape_scales = torch.tensor(scales, dtype=torch.float64, device=device)

    def orthogonalise(self) -> None:
        """Fill the outputs from the inputs."""
        for filled, made, steps in self._batches:
            rounds(filled, steps=steps, out=made)
