"""The training step without Lightning: what the trainer's loop is measured against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from fasttrain.bench.arms import BENCH_LR, Shape
from fasttrain.bench.training import reset_device
from fasttrain.config.schema import RunConfig
from fasttrain.data.batch import COMPUTE_DTYPES
from fasttrain.data.preprocess import Normalize
from fasttrain.model.build import build_model
from fasttrain.optimizer.build import build_optimizer, hold_on_device
from fasttrain.stages import accumulation
from fasttrain.strategy.check import choose_accelerator
from fasttrain.strategy.world import World
from fasttrain.trainer.meters import RATE_SKIP_STEPS

# Steps before a capture, on the stream of the capture, so that every kernel has been chosen.
CAPTURE_WARMUP_STEPS = 5


def time_bare_loop(
    config: RunConfig, shape: Shape, world: World, *, steps: int, repeats: int, num_classes: int
) -> list[float]:
    """Images/s of the run's own network, loss and optimizer in a plain loop; on a GPU replayed as a CUDA graph.

    Args:
        config: The run.
        shape: Of a step.
        world: One rank; ``arms.check_arms`` sees to it, and that there is no loss scaling to do.
        steps: Of each measurement; the first RATE_SKIP_STEPS are not counted, as in the trainer.
        repeats: Measurements.
        num_classes: Of the random labels.

    Returns:
        One rate a measurement.
    """
    reset_device()
    device = torch.device("cuda", 0) if choose_accelerator(config, world) == "gpu" else torch.device("cpu")
    step = _step(config, shape, device, num_classes)
    if device.type == "cuda":
        step = _captured(step, device)
    rates = []
    for _ in range(repeats):
        for _ in range(RATE_SKIP_STEPS):
            step()
        started = _now(device)
        for _ in range(steps - RATE_SKIP_STEPS):
            step()
        rates.append((steps - RATE_SKIP_STEPS) * shape.batch_size / (_now(device) - started))
    return rates


def _step(config: RunConfig, shape: Shape, device: torch.device, num_classes: int) -> Callable[[], None]:
    """One optimizer step on random images that stay where they are."""
    torch.manual_seed(config.seed)
    network: nn.Module = build_model(config.model, num_classes).to(device).train()
    if config.trainer.channels_last:
        network.to(memory_format=torch.channels_last)
    if config.trainer.compile:
        network.compile(dynamic=False)
    optimizer = build_optimizer(replace(config, optimizer=replace(config.optimizer, lr=BENCH_LR)), network)
    if device.type == "cuda":
        hold_on_device(optimizer)
    normalize = Normalize(tuple(config.data.mean), tuple(config.data.std)).to(device)
    parts = accumulation(shape.batch_size, config.trainer.device_batch_size)
    size = shape.batch_size // parts
    images = torch.randint(256, (size, shape.px, shape.px, 3), dtype=torch.uint8, device=device)
    labels = torch.randint(num_classes, (size,), device=device)
    dtype = COMPUTE_DTYPES[config.trainer.precision]

    def step() -> None:
        # Gradients keep their places: a captured step writes to the same ones again.
        optimizer.zero_grad(set_to_none=False)
        for _ in range(parts):
            with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32, cache_enabled=False):
                logits = network(normalize(images))
                loss = F.cross_entropy(logits.float(), labels, label_smoothing=config.trainer.label_smoothing)
            (loss / parts).backward()
        if config.optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.optimizer.clip_norm)
        optimizer.step()

    return step


def _captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a CUDA graph. Source: the whole-network recipe of torch's notes on CUDA graphs."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(CAPTURE_WARMUP_STEPS):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
