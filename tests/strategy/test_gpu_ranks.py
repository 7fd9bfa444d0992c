"""The same checks on GPUs: gloo on one that two ranks share, NCCL on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.strategy.ranks import run_worker

# cuBLAS is deterministic only with a workspace of its own.
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

SHARED = (
    "every_plan_in_turn",
    "unused_parameters",
    "accumulation",
    "frozen_layers",
    "channels_last",
    "clipping_and_scaler",
    "tuning",
    "weights_that_differ",
    "rewrapped_object",
)
NCCL = (*SHARED, "synchronized_batchnorm_trains", "captured_step")


def check(ranks: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    for name in names:
        for rank in ranks:
            if "apart" in rank[name]:
                assert rank[name]["apart"] == 0.0, name
    assert all(rank["weights_that_differ"] == {"equal": False, "exchanged": True} for rank in ranks)
    assert ranks[0]["rewrapped_object"]["gradients_kept"]
    assert ranks[0]["tuning"]["ended"]
    assert ranks[0]["channels_last"]["warnings"] == []


@pytest.mark.gpu
def test_gloo_on_one_gpu_has_stock_ddps_weights_to_the_bit(tmp_path: Path) -> None:
    variables = {**DETERMINISTIC, "TEST_DEVICE": "cuda:0"}
    check(run_worker("worker_ranks.py", 2, tmp_path, *SHARED, variables=lambda rank: variables), SHARED)


@pytest.mark.gpu
def test_a_captured_step_of_one_nccl_rank_equals_an_uncaptured_one(tmp_path: Path) -> None:
    variables = {**DETERMINISTIC, "TEST_DEVICE": "cuda:0", "TEST_BACKEND": "nccl"}
    (rank,) = run_worker("worker_ranks.py", 1, tmp_path, "captured_step", variables=lambda rank: variables)
    assert rank["captured_step"]["why_not"] is None
    assert rank["captured_step"]["captured"] == [True]
    assert rank["captured_step"]["apart"] == 0.0


@pytest.mark.multi_gpu
def test_nccl_on_two_gpus_has_stock_ddps_weights_to_the_bit(tmp_path: Path) -> None:
    def variables(rank: int) -> dict[str, str]:
        # Plans of several streams are among them: communicators then start in the order of the calls.
        order = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
        return {**DETERMINISTIC, **order, "TEST_DEVICE": f"cuda:{rank}", "TEST_BACKEND": "nccl"}

    ranks = run_worker("worker_ranks.py", 2, tmp_path, *NCCL, variables=variables)
    check(ranks, NCCL)
    assert [rank["captured_step"]["captured"] for rank in ranks] == [[True], [True]]
