"""NCCL's sockets are probed where it talks over TCP, and nowhere else."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from fasttrain.strategy import socket_probe, sockets
from fasttrain.strategy.sockets import Meeting, best_choice, choose_sockets, probe, run_probe, why_not_probed
from tests.strategy.ranks import environment, free_port

TWO_NODES = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({}, None),
        ({"NCCL_NET": "Socket"}, None),
        ({"NCCL_NET": "AWS Libfabric"}, "NCCL_NET=AWS Libfabric"),
        ({"NCCL_NET_PLUGIN": "aws-ofi"}, "NCCL_NET_PLUGIN=aws-ofi"),
        ({"NCCL_SOCKET_NTHREADS": "2"}, "they are set in the environment"),
        ({"LOCAL_WORLD_SIZE": "4"}, "the ranks share one machine's memory"),
        ({"LOCAL_WORLD_SIZE": "4", "NCCL_P2P_DISABLE": "1"}, "the ranks share one machine's memory"),
        ({"LOCAL_WORLD_SIZE": "4", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, None),
        ({"WORLD_SIZE": "1"}, "one rank"),
    ],
)
def test_where_sockets_are_probed(variables: dict[str, str], reason: str | None, tmp_path: Path) -> None:
    assert why_not_probed({**TWO_NODES, **variables}, tmp_path / "none") == reason


def test_infiniband_is_left_alone_unless_it_is_off(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0").mkdir()
    assert why_not_probed(TWO_NODES, tmp_path) == "InfiniBand"
    for off in ({"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}):
        assert why_not_probed({**TWO_NODES, **off}, tmp_path) is None


def test_without_a_launcher_nothing_is_probed() -> None:
    variables: dict[str, str] = {}
    assert choose_sockets(variables).reason == "RANK is not set"
    assert variables == {}


def test_the_fastest_numbers_win_by_enough_or_not_at_all() -> None:
    fast = best_choice({None: 34.2, (2, 2): 17.0, (4, 4): 10.3, (8, 4): math.inf})
    assert fast.numbers == (4, 4)
    assert fast.variables() == {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
    assert best_choice({None: 10.0, (2, 2): 9.5}).variables() == {}
    assert best_choice({None: math.inf, (2, 2): 9.5}).numbers == (2, 2)
    assert best_choice({None: math.inf, (2, 2): math.inf}).numbers is None


def test_numbers_that_nccl_takes() -> None:
    assert all(threads <= 16 and threads * each <= 64 for threads, each in sockets.TRIED)


def test_a_probe_in_a_process_of_its_own() -> None:
    variables = {**environment(0, 1, free_port()), "CUDA_VISIBLE_DEVICES": ""}
    ranks = Meeting(variables)
    assert 0 < probe((2, 2), variables, ranks) < 60_000
    assert ranks.ask("2x2/port").isdigit()


def test_a_probes_last_line_counts() -> None:
    text = json.dumps({"ms": 2.5})
    assert run_probe([sys.executable, "-c", f"print('NCCL version'); print({text!r})"], {}) == 2.5


def test_a_probe_that_fails_counts_as_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_probe([sys.executable, "-c", "import sys; sys.exit('no route')"], {}) == math.inf
    monkeypatch.setattr(sockets, "PROBE_TIMEOUT_S", 0.2)
    assert run_probe([sys.executable, "-c", "import time; time.sleep(5)"], {}) == math.inf


def test_the_probe_moves_a_bucket_of_ddp() -> None:
    assert socket_probe.NUM_FLOATS * 4 == 25 * 1024 * 1024
