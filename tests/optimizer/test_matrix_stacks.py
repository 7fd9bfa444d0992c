"""Stacks of equal shapes: where each matrix lies, and how the work is dealt out."""

from __future__ import annotations

import torch

from fasttrain.optimizer.matrix_stacks import MatrixStacks, deal, product_cost
from fasttrain.optimizer.muon_sgd import orthogonalise


def test_the_dearest_goes_to_the_hand_that_has_least() -> None:
    # 7; 5; then 4 to the 5 (9), 3 to the 7 (10), 2 to the 9 (11).
    assert deal([3, 7, 4, 5, 2], 2) == [[1, 0], [3, 2, 4]]
    assert deal([1.0], 3) == [[0], [], []]


def test_the_cost_of_a_round_by_hand() -> None:
    # Two matrices of 2 x 3: 2 x 3 x 2 and 2 x 2 x 3 for the outer products, 2 x 2 x 2 for the square.
    assert product_cost(2, 2, 3) == product_cost(2, 3, 2) == 2 * (12 + 12 + 8)


def test_stacks_give_what_lists_give() -> None:
    torch.manual_seed(0)
    params = [torch.randn(shape) for shape in ((8, 4, 3, 3), (40, 6), (8, 36), (6, 40), (8, 4, 3, 3))]
    stacks = MatrixStacks(params, steps=[3] * 5, dtype=torch.float32)
    for param, filled in zip(params, stacks.inputs, strict=True):
        filled.copy_((param / param.norm()).flatten(1))
    stacks.orthogonalise()
    expected = orthogonalise(params, steps=3, dtype=torch.float32)
    for param, made, scale, wanted in zip(params, stacks.outputs, stacks.shape_scales.tolist(), expected, strict=True):
        assert torch.allclose(made.view(param.shape) * scale, wanted, rtol=1e-5, atol=1e-6)
    # One shape, one stack: the first, third and fifth are neighbours.
    assert len({stack.untyped_storage().data_ptr() for stack in stacks.inputs}) == 3
