"""Compiled objectives: how many graphs were compiled, and how the next job of a sweep gets those of the last."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._dynamo
import torch._functorch.config
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import InductorError

import fasttrain.model
from fasttrain.config.schema import RunConfig
from fasttrain.errors import MachineError, Problem
from fasttrain.trainer.objective import Objective

_kept: tuple[str, Objective] | None = None


def compile_objective(objective: Objective, config: RunConfig, *, num_shapes: int) -> Objective:
    """The objective, compiled; one that this process has compiled before, with the new weights, where it is the same.

    Args:
        objective: On the CPU, its network in its memory format.
        config: The run.
        num_shapes: Distinct shapes of training batches; each is compiled once, before the clock starts.

    Returns:
        ``objective``, or the kept one of an earlier job whose settings of network and step are equal: the compiled
        code belongs to it.
    """
    global _kept
    # More shapes than the limit would run uncompiled; that ends the run instead.
    torch._dynamo.config.recompile_limit = max(8, 2 * num_shapes)
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    keep_compiled_code()
    key = repr((config.model, config.trainer, config.deterministic, _shapes(objective)))
    if _kept is not None and _kept[0] == key:
        _copy_state(objective, _kept[1])
        return _kept[1]
    torch._dynamo.reset()
    objective.compile(dynamic=False)
    _kept = (key, objective)
    return objective


def keep_compiled_code() -> None:
    """Let torch find in its cache on disk what a process before this one compiled, this project's BatchNorm included.

    torch leaves graphs with autograd functions of others out: its key does not know their code nor that of the shapes
    which operators of others give. So the key gets the code of all networks here. A small ResNet on a CPU that had been
    compiled before took 4.9 s in place of 13.0.
    """
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
    given = os.environ.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
    torch.compiler.config.cache_key_tag = f"{given} fasttrain {source_hash(Path(fasttrain.model.__file__).parent)}"


@functools.cache
def source_hash(folder: Path) -> str:
    """A short name of what a folder's Python files say."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def explain_failed_compilation() -> Iterator[None]:
    """Turn the compiler's failure into words: one that was killed leaves broken files, which fail again and again.

    Raises:
        MachineError: torch.compile failed.
    """
    try:
        yield
    except (InductorError, BackendCompilerFailed) as error:
        folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "torch's folder of compiled kernels"
        raise MachineError(
            Problem(
                f"torch.compile failed: {' '.join(str(error).split())[:300]}",
                f"after a killed compilation remove its broken files: rm -r {folder}; or trainer.compile=false",
            )
        ) from error


def compiled_graphs() -> int:
    """Graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def graphs_from_cache() -> int:
    """Of these, the ones whose forward and backward code lay in the compiler's cache; tracing them takes time too."""
    return int(torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"])


def _shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(name, tuple(tensor.shape), tensor.requires_grad) for name, tensor in module.named_parameters()]


@torch.no_grad()
def _copy_state(source: nn.Module, target: nn.Module) -> None:
    for pairs in (
        zip(source.parameters(), target.parameters(), strict=True),
        zip(source.buffers(), target.buffers(), strict=True),
    ):
        for new, kept in pairs:
            kept.copy_(new)
    for parameter in target.parameters():
        parameter.grad = None
    target.train()
