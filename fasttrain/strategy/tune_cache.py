"""Tuned plans that are kept: in a file, and in checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fasttrain.errors import MachineError, Problem
from fasttrain.strategy.plan import CommPlan
from fasttrain.strategy.topology import Topology

# Version of what is kept.
SCHEMA = 1


def fingerprint(
    parameters: Sequence[torch.Tensor], topology: Topology, *, backend: str, device: torch.device, wire: str
) -> dict[str, Any]:
    """All that a tuned plan depends on, plain types: a plan found under another fingerprint is not used.

    Args:
        parameters: Those that get gradients, in order.
        topology: Ranks, nodes, link.
        backend: ``gloo`` or ``nccl``.
        device: On which gradients lie.
        wire: The type on the wire.
    """
    shapes = [[list(parameter.shape), str(parameter.dtype)] for parameter in parameters]
    cuda = device.type == "cuda"
    return {
        "schema": SCHEMA,
        "shapes": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16],
        "world_size": topology.world_size,
        "nodes": [len(ranks) for ranks in topology.nodes],
        "interface": topology.interface,
        "link_mbps": topology.link_mbps,
        "backend": backend,
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "torch": str(torch.__version__),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "",
        "wire": wire,
    }


def key_of(mark: dict[str, Any]) -> str:
    """A fingerprint as one short text."""
    return hashlib.sha256(json.dumps(mark, sort_keys=True).encode()).hexdigest()[:24]


def read_plan(path: Path, mark: dict[str, Any]) -> CommPlan | None:
    """The plan kept under a fingerprint; None where there is none.

    Raises:
        MachineError: The file is no such cache.
    """
    entry = _read(path).get(key_of(mark))
    return CommPlan.from_dict(entry["plan"]) if entry else None


def keep_plan(path: Path, mark: dict[str, Any], plan: CommPlan) -> None:
    """Add a plan to the file, which is replaced whole.

    Raises:
        MachineError: The file is no such cache, or cannot be written.
    """
    content = {**_read(path), key_of(mark): {"plan": plan.to_dict(), "of": mark}}
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise MachineError(
            Problem(f"strategy.tune_cache={path} cannot be written: {error.strerror}", "strategy.tune_cache=null")
        ) from error


def to_checkpoint(plan: CommPlan, mark: dict[str, Any]) -> dict[str, Any]:
    """A tuned plan as a checkpoint holds it."""
    return {"plan": plan.to_dict(), "fingerprint": mark}


def from_checkpoint(saved: dict[str, Any], mark: dict[str, Any]) -> CommPlan | None:
    """The plan of a checkpoint; None where it was tuned under other conditions."""
    return CommPlan.from_dict(saved["plan"]) if saved["fingerprint"] == mark else None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MachineError(
            Problem(f"strategy.tune_cache={path} is no file of tuned plans: {error}", f"remove {path}")
        ) from error
    if not isinstance(content, dict):
        raise MachineError(Problem(f"strategy.tune_cache={path} is no file of tuned plans", f"remove {path}"))
    return content
