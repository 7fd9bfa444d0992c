"""Which rank this process is, and of how many: read from the launcher's environment, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fasttrain.config.schema import RunConfig
from fasttrain.errors import ConfigError, MachineError, Problem


@dataclass(frozen=True)
class World:
    """The ranks of a run.

    Attributes:
        rank, local_rank: Of this process, over all machines and on this one.
        size, local_size: Ranks of the run, and of this machine.
        launcher: Who starts the ranks: ``torchrun``, ``slurm``, or ``self`` (this program).
    """

    rank: int
    local_rank: int
    size: int
    local_size: int
    launcher: str

    @property
    def must_launch(self) -> bool:
        """Whether this process still has to start the ranks."""
        return self.launcher == "self" and self.size > 1

    @property
    def num_nodes(self) -> int:
        return self.size // self.local_size


def find_world(config: RunConfig, environ: Mapping[str, str] = os.environ) -> World:
    """The ranks that the config asks for, checked against those that a launcher started.

    With ``trainer.devices`` and ``trainer.num_nodes`` at 1, a launcher's own numbers count.

    Raises:
        ConfigError: The launcher started another number of ranks than asked for, or several machines
            were asked for without a launcher.
        MachineError: The launcher's variables are incomplete or no numbers.
    """
    devices, num_nodes = config.trainer.devices, config.trainer.num_nodes
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    missing = [name for name in names if name not in environ]
    if _number(environ, "WORLD_SIZE", 1) > 1 and missing:
        raise MachineError(
            Problem(
                f"WORLD_SIZE={environ['WORLD_SIZE']} is set, but {' and '.join(missing)} is not: this process cannot "
                "tell which rank it is",
                "start with torchrun, which sets all of them, or unset WORLD_SIZE",
            )
        )
    if not missing:
        size = _number(environ, "WORLD_SIZE", 1)
        found = World(
            rank=_number(environ, "RANK", 0),
            local_rank=_number(environ, "LOCAL_RANK", 0),
            size=size,
            local_size=_number(environ, "LOCAL_WORLD_SIZE", size),
            launcher="torchrun",
        )
    elif _number(environ, "SLURM_NTASKS", 1) > 1 and "SLURM_PROCID" in environ:
        if "SLURM_NTASKS_PER_NODE" not in environ:
            raise MachineError(
                Problem(
                    f"SLURM started {environ['SLURM_NTASKS']} tasks without saying how many on each machine",
                    "srun --ntasks-per-node=N (one task a GPU)",
                )
            )
        tasks, nodes = _number(environ, "SLURM_NTASKS", 1), _number(environ, "SLURM_NNODES", 1)
        found = World(
            rank=_number(environ, "SLURM_PROCID", 0),
            local_rank=_number(environ, "SLURM_LOCALID", 0),
            size=tasks,
            local_size=tasks // nodes,
            launcher="slurm",
        )
    else:
        if num_nodes > 1:
            raise ConfigError(
                Problem(
                    f"trainer.num_nodes={num_nodes}, but no launcher started this process on each machine",
                    "python -m torch.distributed.run --nnodes "
                    f"{num_nodes} --nproc-per-node {devices} train.py ... (or srun under SLURM)",
                )
            )
        return World(rank=0, local_rank=0, size=devices, local_size=devices, launcher="self")
    asked = devices * num_nodes
    if asked not in (1, found.size) or (asked > 1 and devices != found.local_size):
        raise ConfigError(
            Problem(
                f"trainer.devices={devices} and trainer.num_nodes={num_nodes} ask for {asked} ranks, but "
                f"{found.launcher} started {found.size} ({found.local_size} on this machine)",
                f"trainer.devices={found.local_size} trainer.num_nodes={found.num_nodes}",
            )
        )
    return found


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    """A launcher's variable as a whole number."""
    text = environ.get(name, str(default))
    if not text.isdecimal():
        raise MachineError(Problem(f"{name}={text}: expected a whole number", f"unset {name}, or start with torchrun"))
    return int(text)
