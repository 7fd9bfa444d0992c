"""The Lightning strategy of a run."""

from __future__ import annotations

from datetime import timedelta

from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

from fasttrain.config.schema import AcceleratedDDPConfig, RunConfig
from fasttrain.strategy.accelerated import AcceleratedDDPStrategy
from fasttrain.strategy.settings import settings_of
from fasttrain.strategy.world import World


def build_strategy(config: RunConfig, world: World, accelerator: str) -> Strategy:
    """Lightning's strategy for these ranks: one device, or DDP over gloo or NCCL, stock or accelerated.

    DDP here copies BatchNorm's running statistics from rank 0 only before evaluation
    (the trainer does it), not at every step: training reads batch statistics, so the result is the same.
    """
    kind = config.strategy.kind
    if kind == "auto":
        kind = "ddp" if world.size > 1 else "single"
    if kind == "single":
        return SingleDeviceStrategy(device="cuda:0" if accelerator == "gpu" else "cpu")
    backend, timeout = "nccl" if accelerator == "gpu" else "gloo", timedelta(seconds=config.strategy.timeout_s)
    if isinstance(config.strategy, AcceleratedDDPConfig):
        settings = settings_of(config.strategy, deterministic=config.deterministic)
        return AcceleratedDDPStrategy(settings, process_group_backend=backend, timeout=timeout)
    return DDPStrategy(
        process_group_backend=backend,
        timeout=timeout,
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )
