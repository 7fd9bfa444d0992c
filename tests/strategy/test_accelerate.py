"""One import in a plain DDP script: the same weights, and a way back."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.strategy.ranks import ROOT, run_worker


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_worker("worker_plain.py", 2, tmp_path_factory.mktemp("plain"))


def test_weights_and_buffers_are_stock_ddps_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    assert [rank["apart"] for rank in ranks] == [0.0, 0.0]


def test_rank_0_says_what_was_chosen_and_nobody_else(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["log"] for rank in ranks)
    assert "tuning in the first steps" in first[0]
    assert first[1] == f"accelerated DDP: {ranks[0]['described']}"
    assert second == []


def test_a_static_graph_may_accumulate(ranks: list[dict[str, Any]]) -> None:
    # The first micro-batch of all is reduced by itself; of two ranks' sums the order changes, by a rounding.
    assert ranks[0]["static_apart"] < 1e-6
    assert "static_graph=True" in ranks[0]["static_plan"]


def test_buffers_are_shared_before_evaluation(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["buffers"] == ranks[1]["buffers"]


def test_settings_are_checked(ranks: list[dict[str, Any]]) -> None:
    assert "unexpected keyword argument 'stream'" in ranks[0]["refused"]
    assert "streams" in ranks[0]["refused"]


def test_a_step_on_a_cpu_is_called_as_it_is(ranks: list[dict[str, Any]]) -> None:
    assert (ranks[0]["calls"], ranks[0]["why_not_captured"]) == (1, "its inputs are not on a GPU")


def test_an_object_that_is_compiled_as_a_whole_stays_stock(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["compiled"] == "stock DDP"


def test_off_leaves_ddp_as_torch_makes_it(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["after_off"] == "stock DDP"


@pytest.mark.parametrize(
    ("value", "patched"), [("off", False), pytest.param("0", False, marks=pytest.mark.slow), ("on", True)]
)
def test_the_variable(value: str, patched: bool) -> None:
    code = (
        "from torch.nn.parallel import DistributedDataParallel as D\n"
        "before = D.__init__\n"
        "import fasttrain.accelerate\n"
        f"assert (D.__init__ is not before) == {patched}\n"
        "fasttrain.accelerate.off()\n"
        "assert D.__init__ is before\n"
    )
    variables = {**os.environ, "FASTTRAIN_ACCELERATE": value, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    assert ("tuned in its first steps" in done.stderr) == patched
