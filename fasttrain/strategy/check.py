"""Whether the machine has the devices that the config asks for."""

from __future__ import annotations

from pathlib import Path

from fasttrain.config.schema import AcceleratedDDPConfig, RunConfig
from fasttrain.errors import ConfigError, MachineError, Problem
from fasttrain.strategy.world import World


def check(config: RunConfig) -> list[Problem]:
    """Rules between keys that need no library: one rank cannot be asked to talk to others."""
    problems = []
    if config.trainer.capture == "true" and config.trainer.accelerator == "cpu":
        problems.append(_no_capture_on_cpu())
    ranks = config.trainer.devices * config.trainer.num_nodes
    if config.strategy.kind == "single" and ranks > 1:
        problems.append(
            Problem(
                f"strategy=single, but trainer.devices and trainer.num_nodes ask for {ranks} ranks",
                "strategy=ddp",
            )
        )
    if isinstance(config.strategy, AcceleratedDDPConfig):
        problems += _check_accelerated(config.strategy, deterministic=config.deterministic)
    return problems


def _check_accelerated(strategy: AcceleratedDDPConfig, *, deterministic: bool) -> list[Problem]:
    problems = []
    stock = {"streams": None, "bucket_mb": None, "split_mb": None, "wire_dtype": "none"}
    changed = [
        f"strategy.{key}={getattr(strategy, key)}" for key, value in stock.items() if getattr(strategy, key) != value
    ]
    if strategy.hierarchical == "true":
        changed.append("strategy.hierarchical=true")
    if deterministic and changed:
        what = f"deterministic=true keeps communication as in stock DDP, but {', '.join(changed)}"
        problems.append(Problem(what, "deterministic=false, or strategy=ddp"))
    if strategy.tune_cache is not None and Path(strategy.tune_cache).is_dir():
        folder = f"strategy.tune_cache={strategy.tune_cache}"
        problems.append(Problem(f"{folder}: a folder, expected a file", f"{folder}/plans.json"))
    return problems


def choose_accelerator(config: RunConfig, world: World) -> str:
    """``gpu`` or ``cpu``, after a look at the machine (imports torch).

    Raises:
        ConfigError: fp16, or a captured step, on a CPU.
        MachineError: No GPU, or fewer than ranks on this machine, where GPUs were asked for.
    """
    import torch

    wanted = config.trainer.accelerator
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        if config.trainer.precision == "fp16":
            raise ConfigError(
                Problem(
                    "trainer.precision=fp16 needs a GPU: its loss scaling is not there on a CPU",
                    "trainer.precision=fp32 (or bf16)",
                )
            )
        if config.trainer.capture == "true":
            raise ConfigError(_no_capture_on_cpu())
        return "cpu"
    if count == 0:
        raise MachineError(
            Problem(
                f"trainer.accelerator=gpu, but torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU",
                "check `nvidia-smi` and the driver, or trainer.accelerator=cpu trainer.precision=fp32",
            )
        )
    if count < world.local_size:
        raise MachineError(
            Problem(
                f"trainer.devices={world.local_size}, but this machine shows {count} GPU{'s' * (count > 1)}",
                f"trainer.devices={count}",
            )
        )
    return "gpu"


def _no_capture_on_cpu() -> Problem:
    return Problem("trainer.capture=true needs a GPU: only there is a step a CUDA graph", "trainer.capture=auto")
