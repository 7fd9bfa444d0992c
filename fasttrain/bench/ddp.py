"""``fasttrain bench ddp`` under torchrun: training steps of the article's networks, ways of DDP in turn."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fasttrain.bench.ddp_arguments import Arm, DDPFlags
from fasttrain.bench.ddp_figures import Measured, lines_of
from fasttrain.bench.ddp_models import MODELS, BenchModel, Inputs
from fasttrain.bench.network import pace
from fasttrain.errors import MachineError, Problem
from fasttrain.strategy.driver import attach, capture_step, prepare_nccl, session_of
from fasttrain.strategy.session import CommSession
from fasttrain.strategy.settings import CommSettings
from fasttrain.strategy.stopwatch import Stopwatch
from fasttrain.strategy.world import World

CLOCK = "from one step's end to the next one's, on the device; random inputs that lie there; Adam, fused on a GPU"

# Steps of every way before any is timed: compilation, DDP's own buckets.
WARMUP_STEPS = 15

# Most steps until a tuning must have ended, beyond the budget: its rounds may begin anew.
TUNING_MARGIN = 30

AUTOCAST = {"amp": torch.float16, "bf16": torch.bfloat16}


class Runner:
    """One network in one way of training it; ``step`` trains once."""

    def __init__(self, model: BenchModel, arm: Arm | None, flags: DDPFlags, device: torch.device) -> None:
        """Build it; ``arm=None`` trains on this rank alone."""
        torch.manual_seed(0)
        # Inside each way the same weights, over all ranks other inputs.
        network = model.build().to(device)
        batch = flags.batch_size or model.batch
        torch.manual_seed(1 + (dist.get_rank() if dist.is_initialized() else 0))
        self._inputs: Inputs = model.inputs(batch, device)
        self._loss = model.loss
        self._device, self._precision = device, flags.precision
        if arm is not None and arm.compile:
            network.compile()
        self.wrapped: nn.Module = network if arm is None else _wrap(network, arm, flags, device)
        on_gpu, capture = device.type == "cuda", arm is not None and arm.capture
        self._optimizer = torch.optim.Adam(network.parameters(), lr=1e-5, fused=on_gpu, capturable=capture and on_gpu)
        self._scaler = torch.amp.GradScaler(device.type, enabled=flags.precision == "amp" and on_gpu)
        self._set_to_none = not capture
        self._call: Callable[..., Any] = self._train
        if capture and isinstance(self.wrapped, DistributedDataParallel):
            self._call = capture_step(self._train, [self.wrapped])
        self._arm = arm

    def step(self) -> None:
        """Train once."""
        self._call(*self._inputs)

    def settle(self, most_steps: int) -> None:
        """Train until nothing is tuned, compiled or captured any more.

        Raises:
            MachineError: The step cannot be captured.
        """
        for _ in range(WARMUP_STEPS):
            self.step()
            # Groups are made in the first steps; their connections are as slow as the others from here on.
            pace()
        session = self._session()
        while session is not None and session.tuning and most_steps > 0:
            self.step()
            most_steps -= 1
        if self._arm is not None and self._arm.capture:
            for _ in range(WARMUP_STEPS):
                self.step()
            self._check_captured()

    def plan(self) -> str:
        """What communication ended on."""
        session = self._session()
        return "stock DDP" if session is None else session.describe()

    def _session(self) -> CommSession | None:
        return session_of(self.wrapped) if isinstance(self.wrapped, DistributedDataParallel) else None

    def _check_captured(self) -> None:
        reason = getattr(self._call, "why_not", None)
        if reason is not None:
            raise MachineError(
                Problem(f"--strategy {self._arm}: the step is not captured: {reason}", "without +capture")
            )

    def _train(self, *inputs: Tensor) -> Tensor:
        self._optimizer.zero_grad(set_to_none=self._set_to_none)
        *given, target = inputs
        with self._autocast():
            loss = self._loss(self.wrapped(*given), target)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return loss.detach()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self._precision)
        if dtype is None:
            return contextlib.nullcontext()
        # fp16 on a CPU has no loss scaler to go with it: bf16 stands in for it there.
        dtype = torch.bfloat16 if self._device.type == "cpu" else dtype
        # The cache of casted weights would carry tensors from one captured step into the next.
        return torch.autocast(self._device.type, dtype, cache_enabled=self._set_to_none)


def bench_ddp(flags: DDPFlags, world: World, device: torch.device, say: Callable[[str], None]) -> list[Measured]:
    """Measure every model in every way, the ways in turn; all ranks call it and all get the figures.

    Args:
        flags: What to measure.
        world: The ranks.
        device: Of this rank.
        say: Prints; called on rank 0.
    """
    measured = []
    with process_group(device, CommSettings(**sockets_of(flags))):
        for name in flags.models:
            one = _measure(name, flags, device)
            measured.append(one)
            if world.rank == 0:
                kind = "GPU" if device.type == "cuda" else "CPU"
                lines = lines_of(one, num_nodes=world.num_nodes, local_size=world.local_size, device=kind)
                say("\n".join(lines))
    return measured


def sockets_of(flags: DDPFlags) -> dict[str, Any]:
    """The settings with which NCCL is prepared: where stock DDP is measured too, its sockets are NCCL's own choice."""
    stock = any(arm.strategy == "ddp" for arm in flags.arms)
    return {**flags.settings, "nccl_sockets": "off"} if stock else dict(flags.settings)


@contextlib.contextmanager
def process_group(device: torch.device, settings: CommSettings) -> Iterator[None]:
    """The ranks' group, NCCL prepared before it.

    Raises:
        MachineError: The process was not started by a launcher.
    """
    if "RANK" not in os.environ:
        raise MachineError(
            Problem(
                "fasttrain bench ddp compares ways of talking between ranks, and there is one process",
                "python -m torch.distributed.run --nproc-per-node 2 -m fasttrain bench ddp --model resnet50",
            )
        )
    if device.type == "cuda":
        prepare_nccl(settings)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=10))
    try:
        yield
    finally:
        dist.destroy_process_group()


def _measure(name: str, flags: DDPFlags, device: torch.device) -> Measured:
    model = MODELS[name]
    most = CommSettings(**flags.settings).tune_budget_steps + TUNING_MARGIN
    alone = Runner(model, None, flags, device)
    runners = {str(arm): Runner(model, arm, flags, device) for arm in flags.arms}
    for runner in (alone, *runners.values()):
        runner.settle(most)
    times: dict[str, list[list[float]]] = {way: [] for way in ("alone", *runners)}
    for _ in range(flags.repeats):
        for way, runner in {"alone": alone, **runners}.items():
            times[way].append(_pooled(_steps_s(runner, flags.steps, device)))
    plans = {way: runner.plan() for way, runner in runners.items() if way.startswith("accelerated")}
    del runners, alone, runner
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    single = times.pop("alone")
    return Measured(name, flags.batch_size or model.batch, single, times, plans)


def _steps_s(runner: Runner, steps: int, device: torch.device) -> list[float]:
    """Seconds of each step; the ranks begin together."""
    dist.barrier()
    watch = Stopwatch(device)
    for _ in range(2):
        runner.step()
    watch.mark()
    for _ in range(steps):
        runner.step()
        watch.mark()
    return watch.seconds()


def _pooled(own: list[float]) -> list[float]:
    """All ranks' samples."""
    everyone: list[list[float]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return [sample for samples in everyone for sample in samples]


def _wrap(network: nn.Module, arm: Arm, flags: DDPFlags, device: torch.device) -> DistributedDataParallel:
    """As a plain script does; the accelerated way as after the one import."""
    arguments = {"device_ids": [device]} if device.type == "cuda" else {}
    wrapped = DistributedDataParallel(network, **arguments)  # type: ignore[arg-type]
    if arm.strategy == "accelerated_ddp":
        attach(wrapped, arguments, CommSettings(**flags.settings))
    elif arm.capture:
        # Stock DDP, built on the stream of the capture.
        attach(wrapped, arguments, CommSettings(autotune=False, sync_buffers="step"))
    return wrapped
