"""Which plans are worth trying on these ranks. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from fasttrain.strategy.autotuner import MAX_ARMS
from fasttrain.strategy.plan import CommPlan
from fasttrain.strategy.settings import CommSettings

# MiB of a bucket and streams. Horovod tunes 0 to 64 MiB; where one flow has a cap, streams count for more than
# sizes do.
GRID = ((4.0, 1), (4.0, 2), (16.0, 2), (1.0, 4), (4.0, 4), (16.0, 4), (4.0, 8), (16.0, 8))

# One communicator at once: sizes alone are left to choose.
SIZES_MB = (4.0, 64.0)


def candidates(settings: CommSettings, *, several_streams: bool, several_nodes: bool) -> list[CommPlan]:
    """Plans to set beside stock DDP, at most MAX_ARMS.

    Args:
        settings: What the user has fixed stays fixed.
        several_streams: Whether several process groups may be at work at once.
        several_nodes: Whether there are nodes of several ranks each.
    """
    grid = [(size, k) for size, k in GRID if several_streams or k == 1]
    if not several_streams:
        grid = [(size, 1) for size in SIZES_MB]
    if settings.streams is not None:
        grid = [(size, settings.streams) for size in dict.fromkeys(size for size, _ in GRID)]
    if settings.bucket_mb is not None:
        grid = [(settings.bucket_mb, k) for k in dict.fromkeys(k for _, k in grid)]
    plans = [_plan(settings, size, k) for size, k in dict.fromkeys(grid)]
    by_node = [replace(plan, hierarchical=True) for plan in plans]
    if not several_nodes or settings.hierarchical == "false":
        if settings.streams in (None, 1) and settings.bucket_mb is None:
            # DDP's own buckets, without the copies.
            plans.insert(0, CommPlan(lean=True, wire=settings.wire_dtype))
        return plans[:MAX_ARMS]
    if settings.hierarchical == "true":
        return by_node[:MAX_ARMS]
    # Few streams for the way by node (each rank of a node is a flow of its own already), all of them for the other.
    few = sorted(by_node, key=lambda plan: (plan.streams, -(plan.bucket_mb or 0)))[: MAX_ARMS // 2]
    many = sorted(plans, key=lambda plan: -plan.streams)[: MAX_ARMS - len(few)]
    return [*many, *few]


def fixed_plan(settings: CommSettings, *, several_streams: bool, several_nodes: bool) -> CommPlan:
    """The plan without any tuning: what the user has set, and stock DDP for the rest."""
    if settings.deterministic:
        return CommPlan()
    return CommPlan(
        bucket_mb=settings.bucket_mb,
        streams=(settings.streams or 1) if several_streams else 1,
        split_mb=settings.split_mb or 0.0,
        hierarchical=settings.hierarchical == "true" and several_nodes,
        wire=settings.wire_dtype,
    )


def _plan(settings: CommSettings, size_mb: float, streams: int) -> CommPlan:
    return CommPlan(
        bucket_mb=size_mb, streams=streams, split_mb=settings.split_mb or 0.0, wire=settings.wire_dtype, lean=True
    )
