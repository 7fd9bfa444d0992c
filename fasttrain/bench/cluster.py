"""``fasttrain bench cluster``: what the simulator says of a training step on a cluster that is not here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fasttrain.bench.ddp_arguments import MODEL_NAMES, OTHER_NAMES
from fasttrain.bench.figures import table
from fasttrain.bench.flags import COMMAND_LINE, FlagParser
from fasttrain.errors import ConfigError, Problem
from fasttrain.strategy.plan import STOCK, CommPlan
from fasttrain.strategy.simulate import LABEL, Cluster, Work, negotiation_ms, simulate_step

# Connections that NCCL opens between two nodes by itself: with two, the model says 98 ms where the article's 16 GPUs
# took 91 (ResNet-50, 32 images a GPU, 32 Gbit/s).
STOCK_FLOWS = 2

# Shares of a step's computation, where only its sum is known: backward costs twice a forward.
FORWARD_FRAC, BACKWARD_FRAC = 0.32, 0.64

PLANS = (
    STOCK,
    CommPlan(streams=4),
    CommPlan(streams=8),
    CommPlan(streams=1, hierarchical=True),
    CommPlan(streams=2, hierarchical=True),
    CommPlan(streams=8, wire="bf16"),
)


def run_cluster(arguments: Sequence[str]) -> None:
    """Read the command line and print the table.

    Raises:
        ConfigError: Flags that cannot be run.
    """
    parser = FlagParser(prog="fasttrain bench cluster", description="A training step on a cluster, simulated.")
    add = parser.add_argument
    add("--model", default="resnet50", choices=(*MODEL_NAMES, *OTHER_NAMES), help="whose gradients (default: resnet50)")
    add("--nodes", type=int, default=16, help="machines (default: 16)")
    add("--node-size", type=int, default=8, help="ranks of each (default: 8)")
    add("--link-gbps", type=float, default=32, help="of each machine's link (default: 32)")
    add("--flow-gbps", type=float, default=10, help="most that one connection carries (default: 10)")
    add("--inside-gbps", type=float, default=math.inf, help="between ranks of a machine (default: no bound)")
    add("--latency-ms", type=float, default=0.25, help="of a bucket (default: 0.25)")
    add("--compute-ms", type=float, default=53.6, help="of a step on one rank (default: 53.6, the article's 8 GPUs)")
    flags = parser.parse_args(list(arguments))
    low = [name for name in ("nodes", "node_size", "link_gbps", "flow_gbps", "compute_ms") if getattr(flags, name) <= 0]
    if low:
        names = [f"--{name.replace('_', '-')}" for name in low]
        raise ConfigError([Problem(f"{name}: expected more than 0", "", COMMAND_LINE) for name in names])
    cluster = Cluster(
        flags.nodes, flags.node_size, flags.link_gbps, flags.flow_gbps, flags.inside_gbps, flags.latency_ms
    )
    work = work_of(gradient_sizes(flags.model), flags.compute_ms)
    print(cluster_table(flags.model, cluster, work))


def gradient_sizes(model: str) -> list[int]:
    """Bytes of a network's gradients, the last layer's first."""
    import torch

    from fasttrain.bench.ddp_models import MODELS

    with torch.device("meta"):
        network = MODELS[model].build()
    return [parameter.numel() * parameter.element_size() for parameter in reversed(list(network.parameters()))]


def work_of(sizes: Sequence[int], compute_ms: float) -> Work:
    """A step whose computation is known as one figure."""
    forward, backward = FORWARD_FRAC * compute_ms, BACKWARD_FRAC * compute_ms
    return Work(sizes, forward, backward, compute_ms - forward - backward)


def cluster_table(model: str, cluster: Cluster, work: Work) -> str:
    """A row for each plan, without negotiation as in DDP and with both kinds of it."""
    ways = {
        "order agreed once (DDP)": 0.0,
        "central negotiation": negotiation_ms(cluster.world_size, central=True),
        "decentralised": negotiation_ms(cluster.world_size, central=False),
    }
    rows = []
    for plan in PLANS:
        flows = STOCK_FLOWS if plan == STOCK else 1
        steps = [
            simulate_step(cluster, work, plan, stock_flows=flows, negotiation_ms=delay).step_ms
            for delay in ways.values()
        ]
        rows.append([str(plan), *(f"{ms:.1f}" for ms in steps), f"{work.compute_ms / steps[0]:.2f}"])
    title = (
        f"{model}, {cluster.nodes} x {cluster.node_size} ranks, {cluster.link_gbps:g} Gbit/s a node, "
        f"{cluster.flow_gbps:g} a connection: ms/step, {LABEL} (assumptions: fasttrain/strategy/simulate.py)"
    )
    return table(title, ["plan", *ways, "of one rank's speed"], rows)
