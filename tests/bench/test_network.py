"""The shaped network: its caps hold for raw sockets, and ranks find what a launcher would give them."""

from __future__ import annotations

import socket
import subprocess
import threading

import pytest

from fasttrain.bench import network
from fasttrain.bench.network import PACE_VARIABLE, SO_MAX_PACING_RATE, Network, Shape, open_network, pace
from fasttrain.errors import MachineError

needs_namespaces = pytest.mark.skipif(
    network.why_no_namespaces() is not None, reason="network namespaces need root and iproute2"
)


def test_what_connections_should_carry_together() -> None:
    shape = Shape(2, 1, 1600, 500)
    assert [shape.expected_mbps(flows) for flows in (1, 2, 4)] == [500, 1000, 1600]
    assert Shape(2, 1, None, 500).expected_mbps(4) == 2000
    assert Shape(2, 1, None, None).expected_mbps(4) is None


def test_ranks_of_two_nodes() -> None:
    made = Network(Shape(2, 2, None, 500), "ftx")
    variables = [made.environment(rank, 1234) for rank in range(4)]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
    assert [variables[3][name] for name in names] == ["3", "1", "4", "2", "1", "10.77.0.1", "eth0"]
    assert variables[0][PACE_VARIABLE] == "500"
    assert made.inside(1, ["true"]) == ["ip", "netns", "exec", "ftxn1", "true"]
    alone = Network(Shape(1, 2, None, None), None)
    assert alone.inside(0, ["true"]) == ["true"]
    assert PACE_VARIABLE not in alone.environment(0, 1)


def test_pacing_finds_connections_and_leaves_the_rest_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with client, other:
            assert pace({}) == 0
            # Both ends have the same address: within a node connections are free, but on the loopback.
            before = client.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE)
            pace({PACE_VARIABLE: "80"})
            assert client.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == before
            assert pace({PACE_VARIABLE: "80", "GLOO_SOCKET_IFNAME": "lo"}) >= 2
            rates = [end.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) for end in (client, other)]
            assert rates == [10_000_000, 10_000_000]
            client.sendall(b"still there")
            assert other.recv(11) == b"still there"
            with pytest.raises(OSError, match="Transport endpoint"):
                server.getpeername()


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caps must hold upwards; a machine that does other work too may stay far below them."""
    monkeypatch.setattr(network, "WITHIN", (0.1, network.WITHIN[1]))


@needs_namespaces
@pytest.mark.usefixtures("busy_machine")
def test_caps_hold_and_nothing_is_left_behind() -> None:
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    with open_network(Shape(2, 1, 200, 60)) as made:
        assert made.has_namespaces
        done = made.run(["-c", "import os; print(os.environ['RANK'], os.environ['MASTER_ADDR'])"])
        assert [each.returncode for each in done] == [0, 0]
        assert done[1].stdout.split() == ["1", "10.77.0.1"]
    after = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert sorted(line.split()[0] for line in after.splitlines() if line.startswith("ft")) == sorted(
        line.split()[0] for line in before.splitlines() if line.startswith("ft")
    )


def test_a_cap_that_does_not_hold_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Network(Shape(2, 1, 1600, 500), "ftx")
    monkeypatch.setattr(Network, "measure_mbps", lambda self, flows, seconds=1.0: 2000.0)
    with pytest.raises(MachineError, match="1 connections carry 2000 Mbit/s, where 500 were asked for"):
        made.check()


def test_shaped_links_without_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "why_no_namespaces", lambda: "not root")
    with pytest.raises(MachineError, match="not root"), open_network(Shape(2, 1, 1600, None)):
        pass


@pytest.mark.usefixtures("busy_machine")
def test_paced_loopback_needs_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "why_no_namespaces", lambda: "not root")
    threads = threading.active_count()
    with open_network(Shape(1, 2, None, 100)) as made:
        assert not made.has_namespaces
        assert made.measure_mbps(1) <= 112
    assert threading.active_count() == threads
