"""The kernels compile for a GPU that is not here: the interpreter does not check types, nor how wide accesses are."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fasttrain.optimizer import group_numbers, kernel_access, kernels, tensor_table
from fasttrain.optimizer.launches import CHUNK, WARPS
from fasttrain.optimizer.tensor_table import BLOCK

pytestmark = [
    pytest.mark.skipif("nvidia" not in backends, reason="Triton without NVIDIA's part"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled in the interpreter"),
]

INT32 = ("groups", "block_tensors", "block_numbers", "first_blocks")
INT64 = ("addresses", "sizes")
FP32 = ("grad_scale", "found_inf")
CONSTANTS = {"BLOCK": BLOCK, "CHUNK": CHUNK, "TINY": 1e-30, "EPS": 1e-7, "ALIGNED": True, "SCALED": True}


def ptx_of(kernel: Any, **constants: bool) -> str:
    """Assembly for an H200 (compute capability 9.0)."""
    types = dict.fromkeys(kernel.arg_names, "*fp64")
    types |= dict.fromkeys(INT32, "*i32") | dict.fromkeys(INT64, "*i64") | dict.fromkeys(FP32, "*fp32")
    signature = {name: "constexpr" if name.isupper() else types[name] for name in kernel.arg_names}
    chosen = {
        (kernel.arg_names.index(name),): value
        for name, value in {**CONSTANTS, **constants}.items()
        if name in signature
    }
    source = ASTSource(kernel, signature, chosen)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS}).asm["ptx"]


def test_tables_and_kernels_number_columns_and_slots_alike() -> None:
    numbered = [getattr(kernel_access, name.upper()).value for name in group_numbers.COLUMNS]
    assert numbered == list(range(kernel_access.COLUMNS.value))
    assert kernel_access.SLOTS.value == tensor_table.SLOTS


@pytest.mark.parametrize(("hybrid", "ratios"), [(False, False), (True, False), (False, True)])
def test_the_update_moves_16_bytes_at_once(hybrid: bool, ratios: bool) -> None:
    ptx = ptx_of(kernels.sgd, HYBRID=hybrid, RATIOS=ratios)
    # Eight elements of a thread are two accesses: weight, gradient and buffer are read, weight and buffer written.
    assert len(re.findall(r"ld\.global\S*\.v4\.", ptx)) == 2 * (3 + hybrid)
    assert len(re.findall(r"st\.global\S*\.v4\.", ptx)) == 2 * (2 + hybrid)


@pytest.mark.parametrize("name", ["advance_rms_weight", "lars_squares", "lars_ratios", "muon_inverse_norms"])
def test_the_kernels_around_it_compile(name: str) -> None:
    assert ".entry" in ptx_of(getattr(kernels, name))


def test_the_kernels_of_matrices_compile() -> None:
    for kernel, constants in (
        (kernels.muon_momentum, {}),
        (kernels.muon_stack, {"HALF": True}),
        (kernels.muon_apply, {"HALF": True}),
    ):
        assert re.search(r"st\.global\S*\.v4\.", ptx_of(kernel, **constants))
