"""Checkpoints: last, the one before it, and the best, written whole or not at all."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.plugins.io import TorchCheckpointIO

from fasttrain.config.schema import TargetConfig
from fasttrain.errors import MachineError, Problem, Stopped
from fasttrain.trainer.module import ClassifierModule
from fasttrain.trainer.results import accuracy_of
from fasttrain.trainer.signals import StopSignals

# Version of the layout described in Checkpoints.
SCHEMA = 1

# Steps between two looks of all ranks at whether one of them was told to stop.
STOP_CHECK_STEPS = 10


class Checkpoints(Callback):
    """Writes ``last.ckpt`` at each epoch's end (after its validation, if any) and where a signal ends the run.

    The layout is Lightning's, in plain types (``torch.load`` opens it with its defaults): ``state_dict`` holds the
    network under timm's own keys, ``fasttrain`` the position, the config as text, the preprocessing, and whether it
    was the best so far.

    Args:
        folder: Where the files go.
        header: Plain values put under ``fasttrain`` in each file (config text, preprocessing, ...).
        target: Its metric makes a checkpoint the best.
        signals: The run's stop signals.
        uncounted: Context manager in which the time of writing is kept off the clock.
        best_accuracy: Of the epochs before a resume, in percent by this run's metric; None where there is none.
    """

    def __init__(
        self,
        folder: Path,
        header: dict[str, Any],
        target: TargetConfig,
        signals: StopSignals,
        uncounted: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        best_accuracy: float | None = None,
    ) -> None:
        self.folder = folder
        self.header = header
        self.target = target
        self.signals = signals
        self.uncounted = uncounted
        self.best_accuracy = best_accuracy
        self._saving_best = False

    def state_dict(self) -> dict[str, Any]:
        return {"best_accuracy": self.best_accuracy}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        assert isinstance(pl_module, ClassifierModule)
        checkpoint["fasttrain"] = {
            **self.header,
            "schema": SCHEMA,
            "step": pl_module.step,
            "epochs": position(pl_module),
            "world_size": trainer.world_size,
            "best": self._saving_best,
        }

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, ClassifierModule)
        epoch = pl_module.epoch_plan
        at_end = pl_module.step == epoch.first_step + epoch.steps
        if not at_end and self._stop_agreed(trainer, pl_module):
            pl_module.check_loss()
            self._save(trainer, best=False)
            self._stop(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ClassifierModule)
        result = pl_module.last_epoch
        assert result is not None, "an epoch has its result before it ends"
        accuracy = accuracy_of(result, self.target)
        best = accuracy is not None and (self.best_accuracy is None or accuracy > self.best_accuracy)
        if best:
            self.best_accuracy = accuracy
        self._save(trainer, best=best)
        if self._any_rank_stopped(trainer) and pl_module.step < pl_module.plan.total_steps:
            self._stop(pl_module)

    def _stop_agreed(self, trainer: Trainer, module: ClassifierModule) -> bool:
        """Whether all ranks stop here: asked at steps that all of them reach."""
        if trainer.world_size == 1:
            return self.signals.requested is not None
        epoch = module.epoch_plan
        together = module.steps_together.get(epoch.stage, 1)
        boundaries = (module.step - epoch.first_step) // together
        return boundaries % max(1, STOP_CHECK_STEPS // together) == 0 and self._any_rank_stopped(trainer)

    def _any_rank_stopped(self, trainer: Trainer) -> bool:
        flag = torch.tensor(self.signals.requested or 0, device=trainer.strategy.root_device)
        if trainer.world_size > 1:
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        if int(flag) and self.signals.requested is None:
            self.signals.requested = int(flag)
        return bool(int(flag))

    def _stop(self, module: ClassifierModule) -> None:
        self.signals.reached_boundary()
        raise Stopped(
            Problem(
                f"at step {module.step} of {module.plan.total_steps}; saved to {self.folder / 'last.ckpt'}",
                f"the same command with run_dir={self.folder.parent} resume=auto continues",
            ),
            self.signals.exit_code(),
        )

    def _save(self, trainer: Trainer, *, best: bool) -> None:
        last, previous = self.folder / "last.ckpt", self.folder / "previous.ckpt"
        unfinished = self.folder / "last.ckpt.unfinished"
        self._saving_best = best
        with self.uncounted():
            trainer.save_checkpoint(unfinished, weights_only=False)
            if trainer.is_global_zero:
                with explain_write(unfinished):
                    if last.exists():
                        os.replace(last, previous)
                    os.replace(unfinished, last)
                    if best:
                        replace_by_copy(last, self.folder / "best.ckpt")


def restore_best(folder: Path, path: Path, content: dict[str, Any]) -> None:
    """Make the checkpoint of a resume ``best.ckpt`` where a kill came before that.

    Args:
        folder: Of the run's checkpoints.
        path: Of the checkpoint.
        content: Of it; nothing is done where it was not the best of its run when it was written.

    Raises:
        MachineError: The folder cannot be written.
    """
    best, header = folder / "best.ckpt", content["fasttrain"]
    if header.get("best", False) and _step_of(best, path) < header["step"]:
        with explain_write(best.with_name(best.name + ".unfinished")):
            replace_by_copy(path, best)


def _step_of(best: Path, path: Path) -> float:
    """Step at which ``best`` was written: -1 where there is none to be read, above all others if it is ``path``."""
    try:
        if best.samefile(path):
            return math.inf
        return int(torch.load(best, map_location="cpu", weights_only=True, mmap=True)["fasttrain"]["step"])
    except Exception:  # what reads the bytes of any file raises what it likes
        return -1


class WholeFileIO(TorchCheckpointIO):
    """Writes a checkpoint straight to its (temporary) name and waits until it is on the disk."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        path = Path(path)
        with explain_write(path):
            torch.save(checkpoint, path)
            sync_to_disk(path)


@contextmanager
def explain_write(path: Path) -> Iterator[None]:
    """Turn a failed write into words; what was half written is removed.

    Raises:
        MachineError: The disk is full, or the folder cannot be written.
    """
    try:
        yield
    # torch's writer reports a full disk as a RuntimeError.
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise MachineError(
            Problem(
                f"could not write {path}: {' '.join(str(error).split())}; the checkpoints written before are intact",
                "make room or correct the folder's permissions, then continue with "
                f"run_dir={path.parent.parent} resume=auto",
            )
        ) from error


def position(module: ClassifierModule) -> list[list[int]]:
    """The epochs begun so far, as [px, batch size, steps]: a resume must find the same behind it."""
    return [[e.px, e.batch_size, e.steps] for e in module.plan.epochs if e.first_step < module.step]


def sync_to_disk(path: Path) -> None:
    """Wait until the file's bytes are on the disk, so that the rename after it never shows a hole."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def replace_by_copy(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source`` (a hard link, or a copy where links are refused)."""
    unfinished = target.with_name(target.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        os.link(source, unfinished)
    except OSError:
        shutil.copyfile(source, unfinished)
    os.replace(unfinished, target)
