"""Matrices of equal shapes next to each other, so that each shape is one batch of matrix products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from fasttrain.optimizer.newton_schulz import rounds, shape_scale

# Streams over which a GPU's shapes are dealt: the products of small matrices fill a small part of it.
NUM_STREAMS = 4


class MatrixStacks:
    """Owns, for each shape and number of rounds, a stack that the kernels fill and one that they read.

    On a GPU the shapes are worked on side by side, on streams of their own that start from the current one and end
    in it; in a capture they are branches of the graph.

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
        batches: list[tuple[Tensor, Tensor, int]] = []
        scales = [1.0] * len(params)
        for (rows, columns, rounds_of_them), members in alike.items():
            filled, made = torch.zeros(2, len(members), rows, columns, dtype=dtype, device=device).unbind()
            batches.append((filled, made, rounds_of_them))
            for index, one, other in zip(members, filled.unbind(), made.unbind(), strict=True):
                self.inputs[index], self.outputs[index] = one, other
                scales[index] = shape_scale(rows, columns)
        self.shape_scales = torch.tensor(scales, dtype=torch.float64, device=device)
        self._streams = [torch.cuda.Stream(device) for _ in range(NUM_STREAMS)] if device.type == "cuda" else []
        costs = [product_cost(*filled.shape) * steps for filled, _, steps in batches]
        hands = deal(costs, max(1, len(self._streams)))
        self._hands = [[batches[index] for index in hand] for hand in hands]

    def orthogonalise(self) -> None:
        """Fill the outputs from the inputs."""
        if not self._streams:
            for batches in self._hands:
                _work_off(batches)
            return
        here = torch.cuda.current_stream(self.shape_scales.device)
        for stream, batches in zip(self._streams, self._hands, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                _work_off(batches)
        for stream in self._streams:
            here.wait_stream(stream)


def deal(costs: Sequence[float], num_hands: int) -> list[list[int]]:
    """Indices of ``costs`` in hands of about equal sums: the dearest first, each to the hand that has least."""
    hands: list[list[int]] = [[] for _ in range(num_hands)]
    sums = [0.0] * num_hands
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        least = sums.index(min(sums))
        hands[least].append(index)
        sums[least] += costs[index]
    return hands


def product_cost(num_matrices: int, rows: int, columns: int) -> int:
    """Multiplications of one round: two products of the short side squared by the long one, and one cubed."""
    short, long = sorted((rows, columns))
    return num_matrices * (2 * short**2 * long + short**3)


def _work_off(batches: Sequence[tuple[Tensor, Tensor, int]]) -> None:
    for filled, made, steps in batches:
        rounds(filled, steps=steps, out=made)
