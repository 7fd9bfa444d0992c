"""The checkpoint that a run goes on from: found, checked against the run, and what it says of what is left to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrain.config.compose import ComposedRun
from fasttrain.config.schema import RunConfig
from fasttrain.data.scan import Scan
from fasttrain.report.callback import ReportCallback
from fasttrain.report.console import log
from fasttrain.stages import Plan
from fasttrain.strategy.world import World
from fasttrain.trainer.checkpoints import restore_best
from fasttrain.trainer.resume import newest_checkpoint, read_checkpoint
from fasttrain.trainer.resume_check import check_resume


@dataclass(frozen=True)
class FoundCheckpoint:
    """What a run continues from."""

    path: Path
    content: dict[str, Any]


def find_checkpoint(
    run: ComposedRun, images: Scan, plan: Plan, run_dir: Path, resume: str | None
) -> FoundCheckpoint | None:
    """The checkpoint to continue from, checked against this run; None starts from the beginning.

    Raises:
        ConfigError: It is missing or broken, or belongs to another run.
        DataError: It was trained on other classes.
    """
    if resume is None:
        return None
    if resume == "auto":
        newest = newest_checkpoint(run_dir)
        if newest is None:
            log.info("resume=auto: no checkpoint in %s yet; starting from the beginning", run_dir)
            return None
        path, content = newest
    else:
        path, content = Path(resume), read_checkpoint(Path(resume))
    check_resume(content, path, run.values, plan, images=images, force=run.config.resume_force)
    return FoundCheckpoint(path, content)


def keep_best(checkpoint: FoundCheckpoint, run_dir: Path, world: World) -> None:
    """See that ``best.ckpt`` is there where a kill came before it was; rank 0 writes it."""
    if world.rank == 0:
        restore_best(run_dir / "checkpoints", checkpoint.path, checkpoint.content)


def best_accuracy(checkpoint: FoundCheckpoint, metric: str) -> float | None:
    """The highest ``top1`` or ``top5`` (percent) of the epochs behind a checkpoint; None where there is none."""
    rows = checkpoint.content["callbacks"][ReportCallback.__qualname__]["rows"]
    return max((row[metric] for row in rows if row[metric] is not None), default=None)


def is_finished(checkpoint: FoundCheckpoint, config: RunConfig, plan: Plan) -> bool:
    """Whether nothing is left to train: the last step is done, or this run's target is reached and ends it."""
    if checkpoint.content["fasttrain"]["step"] >= plan.total_steps:
        return True
    best = best_accuracy(checkpoint, config.target.metric)
    return config.target.stop and best is not None and best >= config.target.value
