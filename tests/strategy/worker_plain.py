"""A rank of a plain DDP script with the one import; writes what it found."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# As scripts do, before the import that accelerates it.
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

import fasttrain.accelerate
from fasttrain.errors import ConfigError
from tests.strategy.worker_ranks import apart, images, network, record_log

STEPS = 140


def loop(steps: int = STEPS, *, accumulate: int = 1, **arguments: Any) -> tuple[DDP, Tensor]:
    model = network()
    wrapped = DDP(model, **arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        wrapped.train()
        for part in range(accumulate):
            with wrapped.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                wrapped(images(accumulate * step + part)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 25 == 24:
            wrapped.eval()
            with torch.no_grad():
                wrapped(images(0))
    return wrapped, torch.cat([t.detach().flatten().float() for t in model.state_dict().values()])


def main(out: str) -> None:
    dist.init_process_group("gloo")
    with record_log() as lines:
        wrapped, ours = loop()
        described = fasttrain.accelerate.plan_of(wrapped)
        static, statically = loop(5, accumulate=3, static_graph=True)
    copied = pickle.loads(pickle.dumps(wrapped.module.state_dict()))
    fasttrain.accelerate.use(sync_buffers="eval")
    at_evaluation, _ = loop(25)
    buffers = [b.float().sum().item() for b in at_evaluation.module.buffers()]
    try:
        fasttrain.accelerate.use(stream=3)
        refused = ""
    except ConfigError as error:
        refused = str(error)
    calls: list[int] = []
    captured = fasttrain.accelerate.capture(lambda tensor: calls.append(1))
    captured(torch.zeros(1))
    compiled = DDP(network())
    call = torch.compile(compiled, backend="eager")
    for step in range(3):
        call(images(step)).square().mean().backward()
    fasttrain.accelerate.off()
    plain, stock = loop()
    # Stock DDP itself crashes where a static graph's first backward pass is not reduced.
    _, accumulated = loop(5, accumulate=3)
    facts = {
        "apart": apart(ours, stock),
        "static_apart": apart(statically, accumulated),
        "static_plan": fasttrain.accelerate.plan_of(static),
        "described": described,
        "log": lines,
        "parameters": len(copied),
        "buffers": buffers,
        "refused": refused,
        "calls": len(calls),
        "why_not_captured": captured.why_not,
        "compiled": fasttrain.accelerate.plan_of(compiled),
        "after_off": fasttrain.accelerate.plan_of(plain),
    }
    Path(out).write_text(json.dumps(facts))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
