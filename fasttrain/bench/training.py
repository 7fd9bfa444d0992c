"""Short trainings through Lightning, as train.py runs them, with what a benchmark reads from them."""

from __future__ import annotations

import gc
import logging
import signal
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from pytorch_lightning import Callback, LightningModule, Trainer

from fasttrain.bench.arms import ShortRun
from fasttrain.bench.fills import cut_epochs
from fasttrain.data.scan import Scan
from fasttrain.errors import DeviceLost, Problem
from fasttrain.report.console import configure_logging, log
from fasttrain.report.history import History, Row
from fasttrain.run import planning, training
from fasttrain.schedule.schedule import build_schedule
from fasttrain.strategy.world import World
from fasttrain.trainer.checkpoints import Checkpoints
from fasttrain.trainer.fit import SignalsOn, StopAtTarget
from fasttrain.trainer.module import ClassifierModule
from fasttrain.trainer.signals import EXIT_CODES, StopSignals
from fasttrain.trainer.warmup import step_shape

# Callbacks that a measured training does without: it writes no checkpoints, so it cannot be continued either.
LEFT_OUT = (Checkpoints, StopAtTarget)

# What to do about a lost GPU where there is no checkpoint to go on from.
LOST_FIX = "measure again, best with no other program on the GPU; trainer.capture=false and debug=true say more"

# Names of CUDA's calls that start work, as the profiler shows them; a replayed graph is one call.
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


@dataclass(frozen=True)
class Measured:
    """One epoch of a short training.

    Attributes:
        row: Of its history: px, batch size, images/s by the trainer's own meter.
        fills: Whether it was there to fill caches.
        profiled: Whether it was there to count launches.
        peak_bytes: Most memory that tensors took on this device; None on a CPU.
        launches: Calls that start work on the device, one step; None where they were not counted.
    """

    row: Row
    fills: bool
    profiled: bool
    peak_bytes: int | None
    launches: float | None

    @property
    def rate(self) -> float | None:
        """Images/s, where they count."""
        return None if self.fills or self.profiled else self.row.images_per_second


Take = Callable[[Measured], None]


def train_briefly(
    short: ShortRun, world: World, take: Take, *, images: Scan | None = None, profile_from_epoch: int | None = None
) -> float:
    """Train a run to its end; returns the seconds of the warm-up, compilation and capture in it.

    Args:
        short: What to train; its checkpoints and reports are thrown away.
        world: This process's ranks.
        take: Is called with each epoch as it ends: what a training had measured when it was stopped is not lost.
        images: Of the run; None to look for them.
        profile_from_epoch: First epoch (zero-based) in which launches are counted, on a GPU.

    Raises:
        DeviceLost: The GPU failed.
    """
    run, clock = short.run, planning.begin_clock()
    if images is None:
        images = planning.scan_images(run.config, world)
    plan, _ = planning.lay_out(run.config, images, world)
    plan = cut_epochs(plan, short.steps, fills=short.fills)
    schedule = build_schedule(run.config, plan)
    planning.check_libraries(run.config, images)
    reset_device()
    with tempfile.TemporaryDirectory(prefix="fasttrain-bench-") as folder:
        (Path(folder) / "report").mkdir()
        parts = training.build(run, images, plan, schedule, world, Path(folder), None, clock)
        signals = SignalsOfOthers()
        kept = [callback for callback in parts.callbacks if not isinstance(callback, (*LEFT_OUT, SignalsOn))]
        peaks, launches = PeakMemory(), LaunchCount(profile_from_epoch)
        handing = HandOver(parts.report.history, peaks, launches, fills=short.fills, take=take)
        callbacks = [SignalsOn(signals), *kept, peaks, launches, handing]
        log.setLevel(logging.WARNING)
        try:
            training.fit(replace(parts, signals=signals, callbacks=callbacks))
        except DeviceLost as error:
            # Its own advice is to go on from a checkpoint.
            what = [Problem(problem.what, LOST_FIX) for problem in error.problems]
            raise DeviceLost(what) from error
        finally:
            configure_logging(None, world.rank)
    return parts.report.clock.segments.get("warm-up", 0.0)


class SignalsOfOthers(StopSignals):
    """For a training whose signals are the benchmark's: the handlers of the moment are put back over Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers = {number: signal.getsignal(number) for number in EXIT_CODES}

    def install(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def restore(self) -> None:
        """They have stayed where they were."""


def reset_device() -> None:
    """Let go of what the last training compiled and allocated."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def count_launches(names: Iterable[str]) -> int:
    """How many of a profile's events start work on the device."""
    return sum(name.startswith(LAUNCHES) for name in names)


class PeakMemory(Callback):
    """Notes the most memory that tensors took in each epoch's training, on a GPU."""

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}

    def of(self, epoch: int) -> int | None:
        """Bytes, of a zero-based epoch."""
        return self._peaks.get(epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note(trainer.current_epoch, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # After a validation, where the epoch had one.
        if trainer.current_epoch not in self._peaks:
            self._note(trainer.current_epoch, pl_module)

    def _note(self, epoch: int, module: LightningModule) -> None:
        if module.device.type == "cuda":
            assert isinstance(module, ClassifierModule)
            captured = module.step_runner.captured_bytes(step_shape(module, module.plan.epochs[epoch]))
            self._peaks[epoch] = max(torch.cuda.max_memory_allocated(module.device), captured or 0)


class LaunchCount(Callback):
    """Profiles the first batch of late epochs, on a GPU.

    Args:
        first_epoch: Zero-based; None for never.
    """

    def __init__(self, first_epoch: int | None) -> None:
        self._first_epoch = first_epoch
        self._profiler: torch.profiler.profile | None = None
        self._first_step = 0
        self._launches: dict[int, float] = {}

    def wanted(self, epoch: int) -> bool:
        """Whether launches are counted in a zero-based epoch."""
        return self._first_epoch is not None and epoch >= self._first_epoch

    def of(self, epoch: int) -> float | None:
        """Launches of one step, of a zero-based epoch."""
        return self._launches.get(epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.wanted(trainer.current_epoch) and batch_idx == 0 and pl_module.device.type == "cuda":
            assert isinstance(pl_module, ClassifierModule)
            self._first_step = pl_module.step
            self._profiler = torch.profiler.profile()
            self._profiler.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._profiler is None:
            return
        assert isinstance(pl_module, ClassifierModule)
        self._profiler.stop()
        events = [event.name for event in self._profiler.events() or ()]
        # One Lightning batch may be many captured steps.
        self._launches[trainer.current_epoch] = count_launches(events) / (pl_module.step - self._first_step)
        self._profiler = None


class HandOver(Callback):
    """Gives each epoch away as soon as the report has it; acts after the callbacks that it asks."""

    def __init__(
        self, history: History, peaks: PeakMemory, launches: LaunchCount, *, fills: Collection[int], take: Take
    ) -> None:
        self._history, self._peaks, self._launches = history, peaks, launches
        self._fills, self._take = fills, take

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch
        self._take(
            Measured(
                self._history.rows[epoch],
                fills=epoch in self._fills,
                profiled=self._launches.wanted(epoch),
                peak_bytes=self._peaks.of(epoch),
                launches=self._launches.of(epoch),
            )
        )
