"""One part of the gradients on its way over one stream: flat, or node by node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fasttrain.strategy.streams import Levels, StreamPool


class Routes:
    """Sends parts over the streams of a pool and tells when they have arrived.

    On a GPU nothing waits on the host: ``join`` makes the current CUDA stream wait. On a CPU ``send`` returns
    futures; the ways by node, whose legs depend on one another, each have a thread, so that the legs of one stream
    start in the same order on all ranks.

    Args:
        pool: The groups.
        device: On which gradients lie.
    """

    def __init__(self, pool: StreamPool, device: torch.device) -> None:
        self._pool, self._device = pool, device
        self._threads = [ThreadPoolExecutor(1, f"fasttrain-stream-{i}") for i, _ in enumerate(pool.levels)]
        self._cuda_streams: list[Any] = []
        if device.type == "cuda":
            self._cuda_streams = [torch.cuda.Stream(device) for _ in pool.levels]

    def multiple(self, *, hierarchical: bool) -> int:
        """Elements of a part must be a multiple of this."""
        return self._pool.levels[0].node_size if hierarchical else 1

    def send(self, part: Tensor, stream: int, *, hierarchical: bool) -> Any:
        """Start the sum of ``part`` over all ranks, in place.

        Returns:
            On a CPU a Future; on a GPU what ``join`` takes.
        """
        if not hierarchical:
            work = dist.all_reduce(part, group=self._pool.flat[stream], async_op=True)
            return work if self._device.type == "cuda" else work.get_future()
        levels = self._pool.levels[stream]
        if self._device.type == "cuda":
            side = self._cuda_streams[stream]
            side.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(side):
                reduce_by_node(part, levels)
            part.record_stream(side)
            return side
        arrived: Future[Any] = Future()
        self._threads[stream].submit(_reduce_and_tell, part, levels, arrived)
        return arrived

    def join(self, sent: Any) -> None:
        """Let the current CUDA stream wait for a part."""
        if isinstance(sent, torch.cuda.Stream):
            torch.cuda.current_stream(self._device).wait_stream(sent)
        else:
            sent.wait()

    def close(self) -> None:
        """End the threads, once they have nothing left to do."""
        for thread in self._threads:
            thread.shutdown()


def reduce_by_node(part: Tensor, levels: Levels) -> None:
    """Sum over the node, over the rail, and back: each rank sends its share of the node's sum alone over the network.

    A node's network carries 2 (n - 1) / n of the bytes for n nodes, over as many flows as it has ranks, where a
    flat ring over N ranks carries 2 (N - 1) / N over one flow.

    Args:
        part: 1-D, its length a multiple of the node's ranks; summed in place.
    """
    share = torch.empty(part.numel() // levels.node_size, dtype=part.dtype, device=part.device)
    # torch 2.14 renames both; 2.11 knows the second names only.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter(share, part, group=levels.node)
    dist.all_reduce(share, group=levels.rail)
    gather(part, share, group=levels.node)


def _reduce_and_tell(part: Tensor, levels: Levels, arrived: Future[Any]) -> None:
    # The error travels as a value: torch's futures hand a Python exception to DDP as if it were the result.
    try:
        reduce_by_node(part, levels)
    except RuntimeError as error:
        arrived.set_result(error)
    else:
        arrived.set_result(None)
