"""Where the ranks sit: which of them share a machine, and what joins the machines."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

# Interfaces of the kernel under /sys; a test gives another folder.
INTERFACES = Path("/sys/class/net")


@dataclass(frozen=True)
class Topology:
    """Nodes and ranks.

    Attributes:
        nodes: The ranks of each node, in order.
        rank: This process.
        interface: Over which nodes talk, e.g. ``eth0``; empty where it is not known.
        link_mbps: Its speed, Mbit/s; None where the kernel does not say.
    """

    nodes: tuple[tuple[int, ...], ...]
    rank: int
    interface: str
    link_mbps: int | None

    @property
    def world_size(self) -> int:
        return sum(len(ranks) for ranks in self.nodes)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of this process's node."""
        return next(ranks for ranks in self.nodes if self.rank in ranks)

    @property
    def rails(self) -> tuple[tuple[int, ...], ...]:
        """The i-th ranks of all nodes, for each i; empty where the nodes are of different sizes."""
        sizes = {len(ranks) for ranks in self.nodes}
        return tuple(zip(*self.nodes, strict=True)) if len(sizes) == 1 else ()

    @property
    def has_levels(self) -> bool:
        """Whether gradients can be reduced node by node: several nodes, of several ranks each, all alike."""
        return len(self.nodes) > 1 and len(self.rails) > 1

    def __str__(self) -> str:
        nodes, size = len(self.nodes), self.world_size
        link = f" over {self.interface}" if self.interface and nodes > 1 else ""
        speed = f" ({self.link_mbps} Mbit/s)" if link and self.link_mbps else ""
        return f"{size} rank{'s' * (size > 1)} on {nodes} node{'s' * (nodes > 1)}{link}{speed}"


def detect_topology(environ: Mapping[str, str] = os.environ) -> Topology:
    """Ask all ranks of the default group where they are; all must call it.

    A launcher's LOCAL_WORLD_SIZE counts for more than host names: containers of one machine may share one.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    interface = network_interface(environ)
    if size == 1:
        return Topology(((0,),), 0, interface, link_speed(interface))
    names: list[str] = [""] * size
    dist.all_gather_object(names, node_name(rank, environ))
    return Topology(group_by_node(names), rank, interface, link_speed(interface))


def node_name(rank: int, environ: Mapping[str, str]) -> str:
    """A text that is the same on the ranks of one node and on no others."""
    local = environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdecimal() and int(local) > 0:
        return f"{socket.gethostname()}/{environ.get('GROUP_RANK', rank // int(local))}"
    return socket.gethostname()


def group_by_node(names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Ranks by the names of their nodes, nodes in the order of their first ranks."""
    nodes: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        nodes.setdefault(name, []).append(rank)
    return tuple(tuple(ranks) for ranks in nodes.values())


def network_interface(environ: Mapping[str, str], routes: Path = Path("/proc/net/route")) -> str:
    """The interface that ranks of other nodes are reached by: as told, else that of the default route."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        told = environ.get(name, "").lstrip("=^").split(",")[0]
        if told and not environ[name].startswith("^"):
            return told
    try:
        rows = [line.split() for line in routes.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return ""
    # Second column: destination; all zero is the default route (proc(5)).
    return next((row[0] for row in rows if len(row) > 1 and row[1] == "00000000"), "")


def link_speed(interface: str, folder: Path = INTERFACES) -> int | None:
    """Mbit/s of an interface; None where the kernel has no figure (virtual ones say -1 or refuse)."""
    try:
        mbps = int((folder / interface / "speed").read_text(encoding="ascii")) if interface else -1
    except (OSError, ValueError):
        return None
    return mbps if mbps > 0 else None
