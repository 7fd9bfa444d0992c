"""A rank of the tests: runs the checks named on its command line, writes their facts.

Each check trains the same small network in stock DDP and in another way, and tells how far the weights are apart.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fasttrain.strategy.candidates import candidates
from fasttrain.strategy.driver import attach, capture_step
from fasttrain.strategy.plan import STOCK, CommPlan
from fasttrain.strategy.session import CommSession
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.stopwatch import ranks_differ
from fasttrain.strategy.topology import Topology, detect_topology

# As the test asks: gloo on the CPU, gloo over one GPU that all ranks share, or NCCL with a GPU each.
BACKEND = os.environ.get("TEST_BACKEND", "gloo")
DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))

STEPS = 50
TIMEOUT = timedelta(seconds=60)

Facts = dict[str, Any]


class Network(nn.Module):
    """Convolutions, BatchNorm and two layers whose sizes no power of two divides; a layer that may go unused."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 17, 3), nn.BatchNorm2d(17), nn.ReLU(), nn.Conv2d(17, 20, 1))
        self.head = nn.Sequential(nn.Linear(20 * 36, 251), nn.ReLU(), nn.Linear(251, 7))
        self.extra = nn.Linear(7, 7)
        self.use_extra = True

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(self.features(images).flatten(1))
        return self.extra(logits) if self.use_extra else logits


def network() -> Network:
    torch.manual_seed(0)
    return Network().to(DEVICE)


def images(step: int, *, channels_last: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    batch = torch.randn(4, 3, 8, 8, generator=generator)
    return batch.to(DEVICE, memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def session_of(wrapped: DistributedDataParallel, arguments: Facts, **settings: Any) -> CommSession:
    return CommSession(wrapped, arguments, CommSettings(**settings), detect_topology(), timeout=TIMEOUT)


def train(
    plans: list[CommPlan],
    *,
    arguments: Facts | None = None,
    model: nn.Module | None = None,
    accumulate: int = 1,
    clip: bool = False,
    scaler: bool = False,
    channels_last: bool = False,
    steps: int = STEPS,
) -> Tensor:
    """All weights after some steps, the plan exchanged every five steps."""
    model = model or network()
    if channels_last:
        model.to(memory_format=torch.channels_last)
    arguments = arguments or {}
    wrapped = DistributedDataParallel(model, **arguments)
    session = session_of(wrapped, arguments, autotune=False)
    session.ddp.make_streams(plans)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    scale = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, enabled=scaler)
    for step in range(steps):
        session.ddp.apply(plans[step // 5 % len(plans)])
        optimizer.zero_grad()
        for part in range(accumulate):
            context = wrapped.no_sync() if part < accumulate - 1 else contextlib.nullcontext()
            with context:
                loss = wrapped(images(accumulate * step + part, channels_last=channels_last)).square().mean()
                scale.scale(loss).backward()
        if clip:
            scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scale.step(optimizer)
        scale.update()
    session.ddp.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def all_plans() -> list[CommPlan]:
    nodes = detect_topology().has_levels
    few = candidates(CommSettings(bucket_mb=None), several_streams=True, several_nodes=nodes)
    small = [
        CommPlan(bucket_mb=0.1, streams=3, lean=True),
        CommPlan(bucket_mb=0.0625, join_mb=0.3, streams=2),
        CommPlan(streams=2, split_mb=0.07),
        CommPlan(join_mb=64.0),
    ]
    by_node = [CommPlan(bucket_mb=0.1, streams=2, hierarchical=True), CommPlan(join_mb=0.5, hierarchical=True)]
    return [*few, *small, *(by_node if nodes else []), STOCK]


# --- the checks ---


def every_plan_in_turn() -> Facts:
    stock = train([STOCK])
    return {
        "apart": apart(train(all_plans()), stock),
        "each": [apart(train([p], steps=5), train([STOCK], steps=5)) for p in all_plans()],
    }


def lossy_wire() -> Facts:
    stock = train([STOCK])
    return {wire: apart(train([CommPlan(wire=wire, streams=2)]), stock) for wire in ("bf16", "fp16")}


def unused_parameters() -> Facts:
    def unused() -> Network:
        model = network()
        model.use_extra = False
        return model

    arguments = {"find_unused_parameters": True}
    return {
        "apart": apart(
            train(all_plans(), model=unused(), arguments=arguments), train([STOCK], model=unused(), arguments=arguments)
        )
    }


def accumulation() -> Facts:
    return {"apart": apart(train(all_plans(), accumulate=3, steps=40), train([STOCK], accumulate=3, steps=40))}


def frozen_layers() -> Facts:
    def frozen() -> Network:
        model = network()
        model.features.requires_grad_(False)
        return model

    return {"apart": apart(train(all_plans(), model=frozen()), train([STOCK], model=frozen()))}


def channels_last() -> Facts:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stock = train([STOCK], channels_last=True)
        ours = train([plan for plan in all_plans() if plan != STOCK], channels_last=True)
    return {"apart": apart(ours, stock), "warnings": [str(w.message) for w in caught if "strides" in str(w.message)]}


def clipping_and_scaler() -> Facts:
    return {"apart": apart(train(all_plans(), clip=True, scaler=True), train([STOCK], clip=True, scaler=True))}


def tuning() -> Facts:
    """A whole tuning between real steps, and a second session that begins with what the first one found."""
    stock = train([STOCK], steps=140)
    model = network()
    wrapped = DistributedDataParallel(model)
    session = session_of(wrapped, {})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen, told = [], record_log()
    with told as lines:
        for step in range(140):
            session.before_step(step, "one shape")
            seen.append(str(session.ddp.plan))
            optimizer.zero_grad()
            wrapped(images(step)).square().mean().backward()
            optimizer.step()
    kept = session.to_checkpoint()
    session.ddp.close()
    another = DistributedDataParallel(network())
    later = session_of(another, {})
    later.remember(kept)
    later._start()
    arms = 0 if later._tuner is None else len(later._tuner._arms)
    known = None if later._tuner is None else str(later._tuner._known)
    later.ddp.close()
    return {
        "apart": apart(torch.cat([p.detach().flatten() for p in model.parameters()]), stock),
        "plans_seen": sorted(set(seen)),
        "ended": not session.tuning,
        "log": lines,
        "kept": kept,
        "arms": arms,
        "known": known,
    }


def groups_that_cannot_be_made() -> Facts:
    make = dist.new_group

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("no more sockets")
        return make([dist.get_rank()], use_local_synchronization=True)

    dist.new_group = refuse
    try:
        model = network()
        wrapped = DistributedDataParallel(model)
        session = session_of(wrapped, {}, autotune=False, streams=4)
        with record_log(logging.WARNING) as lines:
            session.before_step(0, "one shape")
    finally:
        dist.new_group = make
    return {"plan": str(session.ddp.plan), "log": lines}


def weights_that_differ() -> Facts:
    weights: list[Tensor] = [torch.arange(5.0, device=DEVICE), torch.ones(3, device=DEVICE)]
    equal = ranks_differ(weights, DEVICE, None)
    if dist.get_rank() == 1:
        # Exchanged values leave every plain sum as it was.
        weights[0][[1, 2]] = weights[0][[2, 1]]
    return {"equal": equal, "exchanged": ranks_differ(weights, DEVICE, None)}


def rewrapped_object() -> Facts:
    """What a user has put on the object survives; gradients that are there do, too."""
    model = network()
    wrapped = DistributedDataParallel(model)
    calls: list[int] = []
    wrapped.register_forward_pre_hook(lambda *args: calls.append(1))
    wrapped.label = "mine"  # type: ignore[assignment]
    wrapped(images(0)).mean().backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    session = session_of(wrapped, {}, autotune=False)
    plan = CommPlan(bucket_mb=0.1, streams=2, lean=True)
    session.ddp.make_streams([plan])
    session.ddp.apply(plan)
    same = all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))
    wrapped(images(1)).mean().backward()
    session.ddp.close()
    return {"hook_calls": len(calls), "label": wrapped.label, "gradients_kept": same, "hooks": len(wrapped._comm_hooks)}


def foreign_hook() -> Facts:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    wrapped = DistributedDataParallel(network())
    wrapped.register_comm_hook(None, allreduce_hook)
    session = session_of(wrapped, {})
    session.before_step(0, "one shape")
    return {"plan": str(session.ddp.plan), "note": session.note}


def synchronized_batchnorm() -> Facts:
    words = []
    for plan in (STOCK, CommPlan(bucket_mb=0.1, lean=True)):
        from fasttrain.strategy.wrapping import wrap

        try:
            wrap(nn.SyncBatchNorm.convert_sync_batchnorm(network()), plan, {}, None)
        except ValueError as error:
            words.append(str(error))
    return {"words": words}


def synchronized_batchnorm_trains() -> Facts:
    def synchronized() -> nn.Module:
        return nn.SyncBatchNorm.convert_sync_batchnorm(network())

    return {"apart": apart(train(all_plans(), model=synchronized()), train([STOCK], model=synchronized()))}


def captured_step() -> Facts:
    """A step as a CUDA graph, after a tuning between real steps, against stock DDP uncaptured."""
    steps = 200
    stock = train([STOCK], steps=steps)
    model = network()
    wrapped = DistributedDataParallel(model)
    attach(wrapped, {}, CommSettings(sync_buffers="step"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: Tensor = wrapped(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = capture_step(step, [wrapped])
    losses = [float(call(images(index))) for index in range(steps)]
    shapes = [shape.graph is not None for shape in call._shapes.values()]
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"apart": apart(weights, stock), "why_not": call.why_not, "captured": shapes, "last_loss": losses[-1]}


def topology() -> Facts:
    found: Topology = detect_topology()
    return {"nodes": found.nodes, "rails": found.rails}


@contextlib.contextmanager
def record_log(level: int = logging.INFO) -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("fasttrain")
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


def main(out: str, names: list[str]) -> None:
    checks: dict[str, Callable[[], Facts]] = {name: globals()[name] for name in names}
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
        torch.use_deterministic_algorithms(True)
    dist.init_process_group(BACKEND, timeout=TIMEOUT)
    Path(out).write_text(json.dumps({name: check() for name, check in checks.items()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
