"""Times all-reduces, to calibrate the simulator: ``python -m fasttrain.bench.reduces``, once a rank.

Prints milliseconds by number of streams and MiB, as JSON, on rank 0.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from fasttrain.bench.network import pace
from fasttrain.strategy.hook import cut
from fasttrain.strategy.plan import MIB, CommPlan
from fasttrain.strategy.routes import Routes
from fasttrain.strategy.stopwatch import slowest_rank_s
from fasttrain.strategy.streams import make_pool
from fasttrain.strategy.topology import detect_topology

SIZES_MB = (1, 8)
STREAMS = (1, 4)
WARMUP, TIMED = 2, 7


def main() -> None:
    """Measure every size over every number of streams."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    timeout = timedelta(minutes=5)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    pool = make_pool(detect_topology(), streams=max(STREAMS), levels=0, timeout=timeout, device=device)
    assert pool is not None, "rank 0 has said why"
    routes = Routes(pool, device)
    pace()
    times = {
        str(streams): {str(size): _reduce_ms(routes, size, streams, device) for size in SIZES_MB} for streams in STREAMS
    }
    routes.close()
    if dist.get_rank() == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def _reduce_ms(routes: Routes, size_mb: int, streams: int, device: torch.device) -> float:
    """The median all-reduce of so many MiB in equal parts over the streams, the slowest rank's."""
    values = torch.zeros(size_mb * MIB // 4, device=device)
    parts = [values[a:b] for a, b in cut(values.numel(), 4, CommPlan(streams=streams), 1)]
    seconds = []
    for _ in range(WARMUP + TIMED):
        dist.barrier()
        started = time.perf_counter()
        for sent in [routes.send(part, index, hierarchical=False) for index, part in enumerate(parts)]:
            routes.join(sent)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return 1000 * slowest_rank_s(statistics.median(seconds[WARMUP:]), device, None)


if __name__ == "__main__":
    main()
