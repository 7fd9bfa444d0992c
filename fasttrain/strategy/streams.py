"""Process groups over which parts of the gradients travel side by side."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from fasttrain.strategy.topology import Topology

log = logging.getLogger("fasttrain")

# Seconds that the making of one group may take; a rank that cannot must not hold the others for a collective's time.
MAKE_TIMEOUT_S = 60

# Thread blocks on the GPU for all communicators together: they compete with the backward pass.
MAX_CTAS = 16


@dataclass(frozen=True)
class Levels:
    """The groups of one stream for a reduction node by node.

    Attributes:
        node: The ranks of this process's node.
        rail: The ranks that have its place on their nodes.
        node_size: Ranks of a node.
    """

    node: dist.ProcessGroup
    rail: dist.ProcessGroup
    node_size: int


@dataclass(frozen=True)
class StreamPool:
    """Groups made in the same order on all ranks, each tried once.

    Attributes:
        flat: Over all ranks, one a stream.
        levels: By node, one a stream; empty where there are no levels.
    """

    flat: tuple[dist.ProcessGroup, ...]
    levels: tuple[Levels, ...]


def make_pool(
    topology: Topology, *, streams: int, levels: int, timeout: timedelta, device: torch.device
) -> StreamPool | None:
    """Make all groups, or none: all ranks call this and get the same answer.

    Args:
        topology: Of the ranks of the default group.
        streams: Flat groups.
        levels: Pairs of groups by node.
        timeout: Of their collectives.
        device: On which gradients lie.

    Returns:
        The pool; None where any rank could not make it (rank 0 says why).
    """
    if streams == 1 and levels == 0:
        return StreamPool((_default_group(),), ())
    failure = ""
    made: list[dist.ProcessGroup] = []
    pairs: list[Levels] = []
    try:
        for _ in range(streams):
            made.append(_make(list(range(topology.world_size)), streams, device))
        for _ in range(levels):
            pairs.append(_make_levels(topology, levels, device))
        for group in [*made, *[pair.node for pair in pairs], *[pair.rail for pair in pairs]]:
            _try(group, device)
            _set_timeout(timeout, group)
    except RuntimeError as error:
        failure = " ".join(str(error).split())[:300]
    reasons: list[str] = [""] * topology.world_size
    dist.all_gather_object(reasons, failure)
    failed = [(rank, reason) for rank, reason in enumerate(reasons) if reason]
    if failed:
        if topology.rank == 0:
            rank, reason = failed[0]
            log.warning(
                "gradients travel as in stock DDP: rank %d could not make %d process groups: %s", rank, streams, reason
            )
        return None
    return StreamPool(tuple(made), tuple(pairs))


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "the default process group is made before any other"
    return group


def _make_levels(topology: Topology, count: int, device: torch.device) -> Levels:
    # Every rank takes part in the making of every group, its own or not.
    nodes = {ranks: _make(list(ranks), count, device) for ranks in topology.nodes}
    rails = {ranks: _make(list(ranks), count, device) for ranks in topology.rails}
    rail = next(group for ranks, group in rails.items() if topology.rank in ranks)
    return Levels(nodes[topology.local_ranks], rail, len(topology.local_ranks))


def _make(ranks: list[int], of: int, device: torch.device) -> dist.ProcessGroup:
    options: Any = None
    if device.type == "cuda" and of > 1:
        # Several communicators may otherwise fill the GPU with kernels that wait for one another.
        options = dist.ProcessGroupNCCL.Options()
        options.config.max_ctas = max(1, MAX_CTAS // of)
    # Where this rank is no member, the answer is a mark that only ``get_rank`` understands.
    return cast(dist.ProcessGroup, dist.new_group(ranks, timeout=timedelta(seconds=MAKE_TIMEOUT_S), pg_options=options))


def _try(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect the group's ranks now: NCCL does it with the first collective."""
    if dist.get_rank(group) < 0:
        return
    dist.all_reduce(torch.ones(4, device=device), group=group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _set_timeout(timeout: timedelta, group: dist.ProcessGroup) -> None:
    # Public since torch 2.13; before, the same function under another name.
    setter = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
    setter(timeout, group)


def prepare_concurrent_nccl(environ: Any = os.environ) -> None:
    """Let NCCL start the kernels of several communicators in the order of their calls; before the first of them."""
    environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
