"""A slow network on one machine: ranks in namespaces behind shaped links, each connection paced.

``python -m fasttrain.bench.network --link-mbps 1600 --flow-mbps 500 -- COMMAND`` runs ``python COMMAND`` once a rank,
with a launcher's variables, after raw sockets have shown that the caps hold. Without root there is one node, the
loopback, with paced connections alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fasttrain.bench.network_flows import SO_MAX_PACING_RATE, flows_mbps
from fasttrain.errors import MachineError, Problem

# Tells a rank how its connections are to be paced, Mbit/s; see ``pace``.
PACE_VARIABLE = "FASTTRAIN_PACE_MBPS"

# What raw sockets may reach of a cap: headers take some; the bucket of a shaper lets a little more through.
WITHIN = (0.75, 1.12)

# A burst that lets a 4 Gbit/s link be filled at the kernel's clock.
BURST_KB, QUEUE_MS = 512, 50


@dataclass(frozen=True)
class Shape:
    """What ranks find between them.

    Attributes:
        nodes: Namespaces, each with a link of its own.
        node_size: Ranks of a node.
        link_mbps: Of a node's link in each direction, Mbit/s; None for the machine's own speed.
        flow_mbps: Most that one connection carries, Mbit/s; None for no cap.
    """

    nodes: int
    node_size: int
    link_mbps: float | None
    flow_mbps: float | None

    def expected_mbps(self, flows: int) -> float | None:
        """What so many connections together should carry; None where nothing bounds them."""
        caps = [self.link_mbps, None if self.flow_mbps is None else flows * self.flow_mbps]
        return min((cap for cap in caps if cap is not None), default=None)


class Network:
    """Namespaces joined by a bridge, or the loopback; ``open_network`` makes and removes it."""

    def __init__(self, shape: Shape, prefix: str | None) -> None:
        self.shape = shape
        self._prefix = prefix

    @property
    def has_namespaces(self) -> bool:
        return self._prefix is not None

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}" if self._prefix is not None else "127.0.0.1"

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """A command as it is run on a node."""
        return list(command) if self._prefix is None else ["ip", "netns", "exec", f"{self._prefix}n{node}", *command]

    def environment(self, rank: int, port: int) -> dict[str, str]:
        """A rank's variables, as a launcher sets them."""
        node, local = divmod(rank, self.shape.node_size)
        pace = {} if self.shape.flow_mbps is None else {PACE_VARIABLE: str(self.shape.flow_mbps)}
        interface = "lo" if self._prefix is None else "eth0"
        return {
            **os.environ,
            **pace,
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(self.shape.nodes * self.shape.node_size),
            "LOCAL_WORLD_SIZE": str(self.shape.node_size),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "OMP_NUM_THREADS": "1",
        }

    def measure_mbps(self, flows: int, *, seconds: float = 1.0) -> float:
        """What raw connections from the last node to the first one carry together, Mbit/s."""
        pace = [] if self.shape.flow_mbps is None else ["--pace-mbps", str(self.shape.flow_mbps)]
        script = [sys.executable, str(Path(__file__).with_name("network_flows.py"))]
        words = ["--flows", str(flows), "--seconds", str(seconds), *pace]
        port = free_port()
        receiver = subprocess.Popen(
            self.inside(0, [*script, "receive", self.address(0), str(port), *words]), stdout=subprocess.PIPE, text=True
        )
        subprocess.run(
            self.inside(self.shape.nodes - 1, [*script, "send", self.address(0), str(port), *words]), check=True
        )
        return flows_mbps(receiver.communicate(timeout=60 + seconds)[0])

    def check(self) -> dict[int, float]:
        """See that the caps hold: Mbit/s of one and of four connections.

        Raises:
            MachineError: They do not; no figure from this network would mean anything.
        """
        found = {flows: self.measure_mbps(flows) for flows in (1, 4)}
        for flows, mbps in found.items():
            expected = self.shape.expected_mbps(flows)
            if expected is not None and not WITHIN[0] * expected <= mbps <= WITHIN[1] * expected:
                raise MachineError(
                    Problem(
                        f"{flows} connections carry {mbps:.0f} Mbit/s, where {expected:.0f} were asked for",
                        "a kernel with tbf and TCP pacing, a machine that is not busy, or lower caps",
                    )
                )
        return found

    def run(self, command: Sequence[str], *, timeout_s: float = 3600) -> list[subprocess.CompletedProcess[str]]:
        """Run ``python COMMAND`` once a rank and wait for all; the first rank's output is shown as it comes."""
        port = free_port()
        ranks = []
        for rank in range(self.shape.nodes * self.shape.node_size):
            words = self.inside(rank // self.shape.node_size, [sys.executable, "-u", *command])
            out = None if rank == 0 else subprocess.PIPE
            ranks.append(
                subprocess.Popen(
                    words, env=self.environment(rank, port), stdout=out, stderr=subprocess.STDOUT, text=True
                )
            )
        try:
            outputs = [process.communicate(timeout=timeout_s)[0] or "" for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        return [
            subprocess.CompletedProcess(process.args, process.returncode, output)
            for process, output in zip(ranks, outputs, strict=True)
        ]


def why_no_namespaces() -> str | None:
    """What stands against namespaces on this machine; None for nothing."""
    if os.geteuid() != 0:
        return "not root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {missing[0]} (iproute2)"
    name = f"ft{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return tried.stderr.strip()
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@contextlib.contextmanager
def open_network(shape: Shape) -> Iterator[Network]:
    """Make the network, check it, remove it.

    Raises:
        MachineError: The machine cannot make it, or its caps do not hold.
    """
    reason = why_no_namespaces()
    if reason is not None:
        if shape.link_mbps is not None or shape.nodes > 1:
            what = f"shaped links between {shape.nodes} nodes need namespaces: {reason}"
            raise MachineError(Problem(what, "root, or one node with --flow-mbps alone"))
        network = Network(shape, None)
        network.check()
        yield network
        return
    prefix = f"ft{uuid.uuid4().hex[:6]}"
    network = Network(shape, prefix)
    try:
        _make(network, prefix)
        network.check()
        yield network
    finally:
        _remove(prefix, shape.nodes)


def _make(network: Network, prefix: str) -> None:
    bridge = f"{prefix}b"
    # The bridge stands in a namespace of its own: the machine's own network is left as it is.
    _run(["ip", "netns", "add", bridge])
    _run(["ip", "-n", bridge, "link", "add", "br0", "type", "bridge"])
    _run(["ip", "-n", bridge, "link", "set", "br0", "up"])
    for node in range(network.shape.nodes):
        name, port = f"{prefix}n{node}", f"p{node}"
        _run(["ip", "netns", "add", name])
        _run(["ip", "-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name])
        _run(["ip", "-n", bridge, "link", "set", port, "master", "br0", "up"])
        _run(["ip", "-n", name, "addr", "add", f"{network.address(node)}/24", "dev", "eth0"])
        for device in ("lo", "eth0"):
            _run(["ip", "-n", name, "link", "set", device, "up"])
        if network.shape.link_mbps is not None:
            tbf = f"tbf rate {network.shape.link_mbps:g}mbit burst {BURST_KB}kb latency {QUEUE_MS}ms"
            # Out of the node, and into it.
            _run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *tbf.split()])
            _run(["tc", "-n", bridge, "qdisc", "add", "dev", port, "root", *tbf.split()])


def _remove(prefix: str, nodes: int) -> None:
    for name in (*(f"{prefix}n{node}" for node in range(nodes)), f"{prefix}b"):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise MachineError(
            Problem(f"`{' '.join(command)}`: {done.stderr.strip()}", "a kernel with veth, bridge and tbf")
        )


def pace(environ: Mapping[str, str] = os.environ) -> int:
    """Pace this process's connections to other ranks as ``PACE_VARIABLE`` says; returns how many there are.

    To be called again whenever connections have been made.
    """
    mbps = environ.get(PACE_VARIABLE)
    if mbps is None:
        return 0
    rate = int(float(mbps) * 1e6 / 8)
    everywhere = environ.get("GLOO_SOCKET_IFNAME") == "lo"
    return sum(_pace_one(int(entry), rate, everywhere=everywhere) for entry in os.listdir("/proc/self/fd"))


def _pace_one(descriptor: int, rate: int, *, everywhere: bool) -> bool:
    """Pace a descriptor to ``rate`` bytes a second where it is a connection to another address."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return False  # a file, or closed since it was listed
    try:
        here, there = connection.getsockname(), connection.getpeername()
        # Within a node connections are free; on the loopback all are within one, and all are paced.
        paced = connection.family in (socket.AF_INET, socket.AF_INET6) and (everywhere or here[0] != there[0])
        if paced:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        return paced
    except OSError:
        return False  # listens, or its peer has gone
    finally:
        # The descriptor is its owner's.
        connection.detach()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def main(arguments: Sequence[str]) -> int:
    """Read flags, make the network, run the command; returns the worst exit code."""
    parser = argparse.ArgumentParser(prog="python -m fasttrain.bench.network", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--nodes", type=int, default=2, help="namespaces with a link each (default: 2)")
    add("--node-size", type=int, default=1, help="ranks of a node (default: 1)")
    add("--link-mbps", type=float, help="of each node's link, Mbit/s (default: unbounded)")
    add("--flow-mbps", type=float, help="most that one connection carries, Mbit/s (default: unbounded)")
    add("command", nargs=argparse.REMAINDER, help="-- and what python runs on each rank")
    flags = parser.parse_args(arguments)
    shape = Shape(flags.nodes, flags.node_size, flags.link_mbps, flags.flow_mbps)
    with open_network(shape) as network:
        for flows, mbps in network.check().items():
            print(f"raw sockets: {flows} connection{'s' * (flows > 1)} carry {mbps:.0f} Mbit/s", flush=True)
        ranks = network.run([word for word in flags.command if word != "--"])
    failed = [rank for rank in ranks if rank.returncode != 0]
    for rank in failed:
        print(rank.stdout, file=sys.stderr)
    return max((abs(rank.returncode) for rank in failed), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
