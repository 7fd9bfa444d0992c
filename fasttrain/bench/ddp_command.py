"""``fasttrain bench ddp``: from the words of the command line to printed lines and the record."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fasttrain.bench.ddp_arguments import DDPFlags, read_ddp_flags
from fasttrain.bench.ddp_figures import outcome_of
from fasttrain.bench.figures import Outcome, document
from fasttrain.report.console import configure_logging
from fasttrain.report.files import require_writable, write_json
from fasttrain.strategy.world import World


def run_ddp(arguments: Sequence[str]) -> None:
    """Measure, print, write the record; every rank calls it.

    Raises:
        ConfigError: Flags that cannot be run.
        MachineError: No launcher, or what a network needs is missing.
    """
    flags = read_ddp_flags(arguments)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    world = World(rank, local_rank, size, int(os.environ.get("LOCAL_WORLD_SIZE", size)), "torchrun")
    configure_logging(None, world.rank)
    if flags.json is not None and world.rank == 0:
        require_writable(flags.json, "--json")
    import torch

    from fasttrain.bench.ddp import CLOCK, bench_ddp

    device = torch.device("cpu")
    if torch.cuda.is_available():
        # A launcher may show each rank its own GPU alone.
        device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    measured = bench_ddp(flags, world, device, lambda text: print(text, flush=True))
    if world.rank != 0:
        return
    outcome = outcome_of(measured)
    outcome.notes += notes(flags, device.type)
    print(f"\nclock: {CLOCK}\n\n{outcome.text()}", flush=True)
    if flags.json is not None:
        write_json(flags.json, record(flags, arguments, outcome, world, device.type))
        print(f"record: {flags.json}")


def notes(flags: DDPFlags, device_type: str) -> list[str]:
    """What a reader of the figures must know."""
    found = []
    if flags.precision == "amp" and device_type == "cpu":
        found.append("amp on a CPU: bf16 autocast without a loss scaler")
    if device_type == "cuda" and any(arm.strategy == "ddp" for arm in flags.arms):
        found.append(
            "NCCL's sockets are its own choice in all ways: what probing them is worth shows in another launch"
        )
    return found


def record(
    flags: DDPFlags, arguments: Sequence[str], outcome: Outcome, world: World, device_type: str
) -> dict[str, Any]:
    """The benchmark as a record of plain types."""
    from fasttrain.bench.ddp import CLOCK
    from fasttrain.report import machine

    facts = {
        "command": machine.command_line(sys.orig_argv, os.environ),
        "commit": machine.commit(Path(__file__).resolve().parents[2]),
        "hardware": machine.hardware(device_type, world_size=world.size, num_nodes=world.num_nodes),
        "versions": machine.versions(device_type),
    }
    return document("ddp", outcome, recipe=",".join(flags.models), overrides=arguments, machine=facts, clock=CLOCK)
