"""One DDP object under a communication plan, which may be exchanged for another between steps."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from fasttrain.strategy.hook import CommState
from fasttrain.strategy.plan import STOCK, CommPlan
from fasttrain.strategy.routes import Routes
from fasttrain.strategy.streams import make_pool
from fasttrain.strategy.topology import Topology
from fasttrain.strategy.wrapping import add_hook, rewrap, why_not_rewrapped


class PlannedDDP:
    """Owns how an object is built and the streams that its plans use.

    Args:
        wrapped: Built as stock DDP with ``arguments``; held weakly, since its owner may be found by it.
        arguments: With which it was built, by keyword.
        topology: Of the ranks.
        timeout: Of collectives.

    Attributes:
        plan: In force.
        build_stream: CUDA stream on which gradients are accumulated whenever it is built anew; None for the current
            one.
    """

    def __init__(
        self, wrapped: DistributedDataParallel, arguments: Mapping[str, Any], topology: Topology, timeout: timedelta
    ) -> None:
        self.plan = STOCK
        self.build_stream: Any = None
        self.device: torch.device = wrapped.device
        self._wrapped_ref = weakref.ref(wrapped)
        self._arguments, self._topology, self._timeout = dict(arguments), topology, timeout
        self._routes: Routes | None = None
        self._state: CommState | None = None

    @property
    def wrapped(self) -> DistributedDataParallel:
        wrapped = self._wrapped_ref()
        assert wrapped is not None, "the DDP object outlives its plans"
        return wrapped

    def make_streams(self, plans: Sequence[CommPlan]) -> None:
        """Make the streams that these plans need, at most once; all ranks call it.

        Where any rank cannot, only plans without the hook can be run on any (``can_run``).
        """
        with_hook = [plan for plan in plans if plan.uses_hook]
        if self._state is not None or not with_hook:
            return
        pool = make_pool(
            self._topology,
            streams=max(plan.streams for plan in with_hook),
            levels=max([0, *[plan.streams for plan in with_hook if plan.hierarchical]]),
            timeout=self._timeout,
            device=self.device,
        )
        if pool is not None:
            self._routes = Routes(pool, self.device)
            self._state = CommState(STOCK, self._routes, world_size=self._topology.world_size, device=self.device)

    def can_run(self, plan: CommPlan) -> bool:
        """Whether the plan has its streams."""
        return self._state is not None or not plan.uses_hook

    def apply(self, plan: CommPlan) -> None:
        """Let gradients travel by another plan from here on; between steps, on all ranks.

        Raises:
            RuntimeError: The plan needs streams that could not be made.
        """
        if plan == self.plan:
            return
        if not self.can_run(plan):
            raise RuntimeError(f"{plan}: there are no streams")
        if self._state is not None:
            self._state.plan = plan
        if plan.wrapping == (*self.plan.wrapping[:2], True) and not self.plan.uses_hook:
            add_hook(self.wrapped, self._state)
        elif plan.wrapping != self.plan.wrapping:
            self._rewrap(plan)
        self.plan = plan

    def rebuild_on(self, stream: Any) -> str | None:
        """Build the object once more under its plan, for a capture on a CUDA stream.

        Returns:
            What stands against it; None where it is done.
        """
        why_not = why_not_rewrapped(self.wrapped, same_buckets=True)
        if why_not is None:
            self.build_stream = stream
            self._rewrap(self.plan)
        return why_not

    def close(self) -> None:
        """End the threads."""
        if self._routes is not None:
            self._routes.close()

    def _rewrap(self, plan: CommPlan) -> None:
        rewrap(self.wrapped, plan, self._arguments, self._state, stream=self.build_stream)
