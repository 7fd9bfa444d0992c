"""``python -m fasttrain.strategy.socket_probe``: times all-reduces in a process of its own and prints milliseconds.

The launcher's variables say which rank it is; NCCL's variables say what is tried.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist

# 25 MiB: a bucket of DDP.
NUM_FLOATS = 25 * (1 << 20) // 4

WARMUP, TIMED = 3, 7


def main() -> None:
    """Time all-reduces over all ranks; prints one line of JSON."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # A launcher may show each rank its own GPU alone.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    values = torch.ones(NUM_FLOATS, device=device)
    seconds = []
    for _ in range(WARMUP + TIMED):
        started = time.perf_counter()
        dist.all_reduce(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
        values.fill_(1.0)
    dist.destroy_process_group()
    print(json.dumps({"ms": 1000 * statistics.median(seconds[WARMUP:])}))


if __name__ == "__main__":
    main()
