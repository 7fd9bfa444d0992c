"""Writes a run's reports as the run goes, and the last ones at its end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from fasttrain.errors import MachineError
from fasttrain.report import dawnbench
from fasttrain.report.clock import Clock
from fasttrain.report.facts import RunFacts, settings
from fasttrain.report.files import write_json, write_text
from fasttrain.report.finished_run import load_run
from fasttrain.report.history import History, Row, metrics_csv
from fasttrain.report.mlperf import MLPerfLog
from fasttrain.report.page import write_page
from fasttrain.report.result import accuracy, build_result, duration, stage_rates, time_line
from fasttrain.stages import EpochPlan
from fasttrain.trainer.results import EpochResult

log = logging.getLogger("fasttrain")


class ReportCallback(Callback):
    """Owns a run's history, its clock's pauses for validation, and the files under ``report/``.

    During training: metrics.csv and dawnbench.tsv after each validated epoch, mlperf.log and a log line an epoch;
    two files are ten milliseconds on the clock, which an epoch of a tenth of a second need not pay. ``finish``
    writes result.json, dawnbench.json and report.html. Only global rank 0 writes; all ranks count.

    The history is in the checkpoint: a run that goes on from it rewrites its files from there, so that
    whatever lies between the last row and the last checkpoint, each epoch is in them once.

    Args:
        facts: The run.
        clock: Its clock; started here at the latest.
    """

    def __init__(self, facts: RunFacts, clock: Clock) -> None:
        self.facts = facts
        self.clock = clock
        self.history = History()
        self.skipped_files: Sequence[str] = ()
        self._mlperf = MLPerfLog(facts.run_dir / "report" / "mlperf.log", facts)
        self._writes = False
        self._resumes = 0
        self._final_validation_seconds: float | None = None
        self._validation: AbstractContextManager[None] | None = None

    # --- what Lightning calls ---

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.mark("warm-up")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._writes = trainer.is_global_zero
        self.clock.start()
        if trainer.global_step < self.facts.plan.total_steps:
            # A run that goes on inside an epoch need not pass on_train_epoch_start.
            self._mark(self.facts.plan.epoch_at(trainer.global_step))
        self._mlperf.start(init_start_ms=int(1000 * (time.time() - self.clock.wall_seconds)))
        if self._writes:
            self._write_tables()
            self._mlperf.open()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = self.facts.plan.epochs[trainer.current_epoch]
        self._mark(epoch)
        self._mlperf.begin_epoch(epoch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._validation = self.clock.paused("validation")
        self._validation.__enter__()
        self._validation_began = self.clock.segments["validation"]
        self._mlperf.begin_eval()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validation is not None:
            self._mlperf.end_eval()
            self._validation.__exit__(None, None, None)
            self._validation = None
            self._final_validation_seconds = self.clock.segments["validation"] - self._validation_began

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.record(pl_module.last_epoch)  # type: ignore[arg-type]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # What Lightning takes down afterwards trains nothing.
        self.clock.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # On a full disk the log must not take the place of the error that ended the run.
        with contextlib.suppress(MachineError):
            if self._writes:
                self._write_tables()
            self._mlperf.end(reached=False)

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": self.history.state(),
            "clock": self.clock.state_dict(),
            "mlperf": self._mlperf.state(),
            "resumes": self._resumes,
            "final_validation_seconds": self._final_validation_seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history.load_state(state_dict["rows"])
        self.clock.load_state_dict(state_dict["clock"])
        self._mlperf.load_state(state_dict["mlperf"])
        self._resumes = state_dict["resumes"] + 1
        self._final_validation_seconds = state_dict.get("final_validation_seconds")

    # --- what the run calls ---

    def record(self, result: EpochResult) -> Row:
        """Take what an epoch gave, before its checkpoint is written.

        Raises:
            ValueError: It is not the next epoch's.
        """
        row = self.history.append(result, seconds=self.clock.seconds, wall_seconds=self.clock.wall_seconds)
        self._mlperf.end_epoch()
        if row.top1 is None:
            self._final_validation_seconds = None
        else:
            self._mlperf.accuracy(row.epoch, row.top1)
        if self._writes:
            if row.top1 is not None:
                self._write_tables()
            log.info(epoch_line(row, self.facts))
        return row

    def note(self, notes: Mapping[str, str]) -> None:
        """Further lines for the report, label to text."""
        self.facts = replace(self.facts, notes={**self.facts.notes, **notes})

    def reopen(self) -> None:
        """Let ``finish`` write although no training comes before it: the report of a run that ended without one."""
        self._writes = True
        self._mlperf.open()

    def finish(self) -> dict[str, Any]:
        """Stop the clock and write what is left to write; call it once, when training has ended.

        Returns:
            The content of ``result.json``. ``line`` gives the sentence about it.
        """
        self.clock.stop()
        rows = self.history.rows
        result = build_result(
            self.facts,
            rows,
            seconds=self.clock.seconds,
            wall_seconds=self.clock.wall_seconds,
            skipped_files=len(self.skipped_files),
            final_validation_seconds=self._final_validation_seconds,
        )
        self._mlperf.end(reached=result["reached"])
        if self._writes:
            report = self.facts.run_dir / "report"
            write_json(report / "result.json", result)
            self._write_tables()
            write_json(report / "dawnbench.json", dawnbench.entry(self.facts, self._misc(), today=date.today()))
            self._write_page()
            for line in rate_lines(rows, self.facts):
                log.info(line)
            if result["seconds_with_final_validation"] is not None:
                log.info(seconds_line(result))
            log.info(parts_line(self.clock.segments))
        return result

    def line(self, result: dict[str, Any]) -> str:
        """The one line about the run, from what ``finish`` returned."""
        return time_line(result, self.history.rows, planned_epochs=len(self.facts.plan.epochs))

    # --- inside ---

    def _mark(self, epoch: EpochPlan) -> None:
        self.clock.mark(f"train stage {epoch.stage}, {epoch.px} px")

    def _write_tables(self) -> None:
        rows = self.history.rows
        write_text(self.facts.run_dir / "metrics.csv", metrics_csv(rows))
        write_text(
            self.facts.run_dir / "report" / "dawnbench.tsv",
            dawnbench.tsv(rows, top5=dawnbench.wants_top5(self.facts)),
        )

    def _misc(self) -> dict[str, Any]:
        """The settings of the run, and what is known at its end only."""
        return {
            **settings(self.facts),
            "skipped_files": list(self.skipped_files),
            "skipped_steps": sum(row.skipped_steps for row in self.history.rows),
            "resumes": self._resumes,
            "clock": "hours are without validation and checkpoint writing; they begin after the warm-up on "
            "random data, before the first image is read",
            "wall_seconds": round(self.clock.wall_seconds, 3),
            "seconds_by_part": {
                part: round(seconds, 3) for part, seconds in self.clock.segments.items() if seconds >= 0.001
            },
        }

    def _write_page(self) -> None:
        try:
            run = load_run(self.facts.run_dir)
            write_page(run, self.facts.run_dir / "report" / "report.html")
        except Exception as error:
            # The figures are on disk; a page that cannot be drawn must not turn the run into a failure.
            log.warning(
                "report.html could not be written (%s: %s); the figures are in %s",
                type(error).__name__,
                error,
                self.facts.run_dir / "report" / "result.json",
            )


def epoch_line(row: Row, facts: RunFacts) -> str:
    """One line an epoch for the log."""
    top1 = "not validated" if row.top1 is None else f"top1 {accuracy(row.top1)}"
    top5 = "" if row.top5 is None else f" top5 {accuracy(row.top5)}"
    if row.raw_top1 is not None:
        raw5 = "" if row.raw_top5 is None else f" top5 {accuracy(row.raw_top5)}"
        top5 += f" (raw weights: top1 {accuracy(row.raw_top1)}{raw5})"
    plain = "" if row.plain_top1 is None else f" (plain top1 {accuracy(row.plain_top1)})"
    rate = "n/a" if row.images_per_second is None else f"{row.images_per_second:,.0f}"
    return (
        f"epoch {row.epoch}/{len(facts.plan.epochs)} | step {row.step}/{facts.plan.total_steps} | "
        f"{row.px} px | loss {row.train_loss:.2f} | {top1}{top5}{plain} | lr {row.lr:.4g} | "
        f"{rate} images/s | {duration(row.seconds)}"
    )


def seconds_line(result: Mapping[str, Any]) -> str:
    """The clock at the end of training, and with the validation after the last epoch (airbench's rule)."""
    seconds, with_validation = result["seconds"], result["seconds_with_final_validation"]
    return f"training: {duration(seconds)}; with the final validation: {duration(with_validation)}"


def parts_line(segments: Mapping[str, float]) -> str:
    """Seconds of the wall time by part, those below a hundredth left out."""
    parts = [f"{name} {seconds:.2f}" for name, seconds in segments.items() if seconds >= 0.01]
    return f"seconds of wall time: {'; '.join(parts)}"


def rate_lines(rows: Sequence[Row], facts: RunFacts) -> list[str]:
    """Images per second of each stage, a line each."""
    lines = []
    for stage, figure in stage_rates(rows).items():
        epoch = next(e for e in facts.plan.epochs if str(e.stage) == stage)
        rate = "n/a" if figure is None else f"{figure:,.0f}"
        lines.append(f"stage {stage}: {epoch.px} px, batch {epoch.batch_size}: {rate} images/s")
    return lines
