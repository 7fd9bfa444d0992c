"""Triton kernels that update all tensors of all groups in one launch.

A launch walks blocks of ``BLOCK`` elements. Tables on the device say which block belongs to which tensor, where the
tensors lie and which group they are of; ``tensor_table.py`` builds them. Hyper-parameters are read from a table of a
row a group (``group_numbers.py``), so that a captured launch follows them. With ``SCALED`` gradients are divided by
fp16's loss scale, and nothing at all is changed where an infinity was found.

Arithmetic is in fp64 with the roundings of ``torch.optim.SGD(fused=True)``, which it equals but for a rounding in
billions: fp64 products of an fp32 update are hidden behind the memory.
"""

from __future__ import annotations

from fasttrain.optimizer.lars_kernels import lars_ratios, lars_squares
from fasttrain.optimizer.muon_kernels import muon_apply, muon_inverse_norms, muon_momentum, muon_stack
from fasttrain.optimizer.sgd_kernels import advance_rms_weight, sgd

__all__ = [
    "advance_rms_weight",
    "lars_ratios",
    "lars_squares",
    "muon_apply",
    "muon_inverse_norms",
    "muon_momentum",
    "muon_stack",
    "sgd",
]
