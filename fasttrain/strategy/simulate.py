"""A model of a training step on a larger cluster; all that it says is simulated. Imports no torch.

A gradient is ready when the backward pass has come to it; a bucket is sent when its last gradient is ready and the
bucket before it has gone; the step ends when the last bucket has arrived and the update is done. The assumptions:

- Backward time is spread over the parameters evenly by number of tensors.
- A bucket costs a latency, once a way, and the bytes that cross the slowest link over its bandwidth. The streams of
  a plan carry equal parts of each bucket at once.
- A node's link carries at most LINK_SHARE of its nominal rate, and each connection at most its cap.
- A flat ring of N ranks moves 2 (N - 1) / N of a bucket over each node's link, by one connection a stream. Node by
  node, each rank's share goes over a connection of its own, 2 (n - 1) / n of the bucket in all for n nodes, between
  two passes inside the node.
- Computation and communication do not slow each other down; what the processors do for communication counts as
  part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrain.strategy.plan import MIB, CommPlan, bucket_caps_mb

LABEL = "simulated"

# What TCP gets of a link's nominal rate: 924 of 1,000 and 3,720 of 4,000 Mbit/s through tbf on a veth pair.
LINK_SHARE = 0.92

# DDP's own buckets, MiB: the first one and the others (torch.nn.parallel.distributed).
STOCK_FIRST_MB, STOCK_MB = 1.0, 25.0

# A negotiation message from one rank to another and back, milliseconds, and how many one rank can handle at once.
MESSAGE_MS = 0.05


@dataclass(frozen=True)
class Cluster:
    """Nodes and what joins them.

    Attributes:
        nodes: Machines.
        node_size: Ranks of each.
        link_gbps: Of each node's link, Gbit/s each way.
        flow_gbps: Most that one connection carries, Gbit/s; infinite for no cap.
        inside_gbps: Between the ranks of a node, Gbit/s.
        latency_ms: That a bucket costs beyond its bytes.
        copies_ms_per_mib: What the ranks' own processors need for each MiB of a bucket, beside the link.
    """

    nodes: int
    node_size: int
    link_gbps: float
    flow_gbps: float = math.inf
    inside_gbps: float = math.inf
    latency_ms: float = 0.25
    copies_ms_per_mib: float = 0.0

    @property
    def world_size(self) -> int:
        return self.nodes * self.node_size

    def bandwidth_gbps(self, flows: int) -> float:
        """Over a node's link with so many connections."""
        return min(LINK_SHARE * self.link_gbps, flows * self.flow_gbps)

    def reduce_ms(self, num_bytes: float, plan: CommPlan, *, stock_flows: int = 1) -> float:
        """One all-reduce over all ranks.

        Args:
            num_bytes: Of the bucket, as they are held; the plan's wire makes fewer of them.
            plan: Streams, wire, and whether node by node.
            stock_flows: Connections of one stream.
        """
        on_wire = num_bytes * (0.5 if plan.wire != "none" else 1.0)
        copies = self.copies_ms_per_mib * num_bytes / MIB
        if plan.hierarchical and self.nodes > 1 and self.node_size > 1:
            flows = plan.streams * self.node_size
            outside = 2 * (self.nodes - 1) / self.nodes * on_wire
            inside = 2 * (self.node_size - 1) / self.node_size * on_wire
            legs = _ms(outside, self.bandwidth_gbps(flows)) + _ms(inside, self.inside_gbps)
            return 3 * self.latency_ms + copies + legs
        share = 2 * (self.world_size - 1) / self.world_size * on_wire
        rate = self.bandwidth_gbps(plan.streams * stock_flows) if self.nodes > 1 else self.inside_gbps
        return self.latency_ms + copies + _ms(share, min(rate, self.inside_gbps))


@dataclass(frozen=True)
class Work:
    """A training step's own part.

    Attributes:
        sizes: Bytes of the parameters in the order in which their gradients become ready.
        forward_ms, backward_ms, update_ms: On one rank without communication.
        buffers_ms: Of a broadcast at the step's start (stock DDP's BatchNorm buffers).
    """

    sizes: Sequence[int]
    forward_ms: float
    backward_ms: float
    update_ms: float = 0.0
    buffers_ms: float = 0.0

    @property
    def compute_ms(self) -> float:
        return self.forward_ms + self.backward_ms + self.update_ms


@dataclass(frozen=True)
class Simulated:
    """A step by the model.

    Attributes:
        step_ms: Of the whole step.
        exposed_ms: Of it that the ranks wait for communication.
        label: Always ``simulated``.
    """

    step_ms: float
    exposed_ms: float
    label: str = LABEL

    def __str__(self) -> str:
        return f"{self.step_ms:.1f} ms a step ({self.label}), {self.exposed_ms:.1f} ms of it waiting"


def buckets(sizes: Sequence[int], plan: CommPlan) -> list[tuple[int, int]]:
    """DDP's buckets: bytes, and how many parameters are ready when each is full."""
    caps = [STOCK_FIRST_MB, STOCK_MB] if plan.bucket_mb is None else bucket_caps_mb(sizes, plan.bucket_mb)
    found: list[tuple[int, int]] = []
    filled = 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= caps[min(len(found), len(caps) - 1)] * MIB:
            found.append((filled, index + 1))
            filled = 0
    if filled:
        found.append((filled, len(sizes)))
    return found


def simulate_step(
    cluster: Cluster, work: Work, plan: CommPlan, *, stock_flows: int = 1, negotiation_ms: float = 0.0
) -> Simulated:
    """One training step.

    Args:
        cluster: On which.
        work: Of one rank.
        plan: How gradients travel; its ``join_mb`` is not looked at.
        stock_flows: Connections of one stream (NCCL may open several).
        negotiation_ms: Before each bucket, until all ranks know that it is ready.
    """
    ranks_talk = cluster.world_size > 1
    start = work.buffers_ms if ranks_talk else 0.0
    end = computed = start + work.forward_ms + work.backward_ms
    if ranks_talk:
        end = 0.0
        for num_bytes, ready in buckets(work.sizes, plan):
            ready_ms = start + work.forward_ms + work.backward_ms * ready / len(work.sizes)
            sent = max(end, ready_ms + negotiation_ms)
            end = sent + cluster.reduce_ms(num_bytes, plan, stock_flows=stock_flows)
    step = max(end, computed) + work.update_ms
    return Simulated(step, step - work.compute_ms)


def negotiation_ms(world_size: int, *, central: bool) -> float:
    """Until all ranks know that a gradient is ready everywhere.

    Central: rank 0 hears and answers every rank, two messages each, one after the other. Decentralised: ranks pass
    it on pairwise, in as many rounds as the logarithm of their number. DDP's own order of buckets, agreed once,
    needs neither.
    """
    if central:
        return 2 * world_size * MESSAGE_MS
    return 2 * math.ceil(math.log2(max(2, world_size))) * MESSAGE_MS


def calibrate(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    """Latency and time per byte from two measured all-reduces.

    Args:
        small, large: Bytes and milliseconds of each, the first with fewer bytes.

    Returns:
        Milliseconds of an empty one, at least 0, and milliseconds of a MiB.

    Raises:
        ValueError: The larger one did not take longer.
    """
    (bytes_a, ms_a), (bytes_b, ms_b) = small, large
    if bytes_b <= bytes_a or ms_b <= ms_a:
        raise ValueError(f"more bytes must take longer: {small}, {large}")
    ms_per_byte = (ms_b - ms_a) / (bytes_b - bytes_a)
    return max(0.0, ms_a - ms_per_byte * bytes_a), ms_per_byte * MIB


def _ms(num_bytes: float, gbps: float) -> float:
    return 0.0 if math.isinf(gbps) else num_bytes * 8 / (gbps * 1e9) * 1e3
