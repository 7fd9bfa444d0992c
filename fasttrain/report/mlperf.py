"""``mlperf.log``: the run in MLPerf Training's log format, written as the run goes.

Source: mlperf-logging 4.1, mllog/constants.py and compliance_checker/training_3.1.0 (open division).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants, mllog

from fasttrain.report.facts import RunFacts
from fasttrain.report.files import cannot_write, write_text
from fasttrain.stages import EpochPlan


class MLPerfLog(logging.Handler):
    """Owns the lines of one run's log, the same on every rank; only an opened log writes its file.

    The lines travel in the checkpoint, so that a run that goes on from it has each event once.

    Args:
        path: The file.
        facts: The run.
    """

    def __init__(self, path: Path, facts: RunFacts) -> None:
        super().__init__()
        self._path = path
        self._facts = facts
        self._lines: list[str] = []
        self._opened = False
        self._epoch: int | None = None
        self._stage: int | None = None
        # The interval inside an epoch that is open: its training, its validation, or neither.
        self._phase: str | None = None
        self._ended = False
        # A logger of its own outside logging's tree: nothing else hears of it or changes its level.
        logger = logging.Logger("mlperf", logging.INFO)
        logger.addHandler(self)
        package_parent = Path(__file__).resolve().parents[2]
        self._log = mllog.MLLogger(logger, root_dir=re.escape(str(package_parent)))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, and append it to the file.

        Raises:
            MachineError: The file cannot be written.
        """
        line = record.getMessage()
        self._lines.append(line)
        if self._opened:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:
                raise cannot_write(self._path, error) from error

    def open(self) -> None:
        """Write the file with the lines so far, and from now on each line as it comes."""
        write_text(self._path, "".join(f"{line}\n" for line in self._lines))
        self._opened = True

    # --- the events of a run, in order ---

    def start(self, *, init_start_ms: int) -> None:
        """The run is set up and begins to train; nothing happens in a run that goes on from a checkpoint.

        Args:
            init_start_ms: When the process began, milliseconds since 1970.
        """
        if self._lines:
            return
        self._log.start(constants.INIT_START, time_ms=init_start_ms)
        for key, value in self._submission().items():
            self._log.event(key, value)
        self._log.event(constants.CACHE_CLEAR, False)
        self._log.end(constants.INIT_STOP)
        self._log.start(constants.RUN_START)

    def begin_epoch(self, epoch: EpochPlan) -> None:
        """Training of an epoch begins, and a block with the first epoch of a stage."""
        number = epoch.epoch + 1
        if number == self._epoch:
            return
        if epoch.stage != self._stage:
            self._end_block()
            self._stage = epoch.stage
            metadata = {
                constants.FIRST_EPOCH_NUM: number,
                constants.EPOCH_COUNT: sum(e.stage == epoch.stage for e in self._facts.plan.epochs),
                "image_px": epoch.px,
                constants.GLOBAL_BATCH_SIZE: epoch.batch_size,
            }
            self._log.start(constants.BLOCK_START, metadata=metadata)
        self._epoch = number
        self._log.start(constants.EPOCH_START, metadata={constants.EPOCH_NUM: number})
        self._phase = "train"

    def begin_eval(self) -> None:
        """Training of the epoch is done, validation begins."""
        self._end_phase()
        self._log.start(constants.EVAL_START, metadata={constants.EPOCH_NUM: self._epoch})
        self._phase = "eval"

    def end_eval(self) -> None:
        """Validation is done."""
        self._end_phase()

    def end_epoch(self) -> None:
        """The epoch is done, without a validation if none has begun."""
        self._end_phase()

    def accuracy(self, epoch: int, top1: float) -> None:
        """The top-1 accuracy of an epoch (from 1), in percent; the log has it as a fraction."""
        self._log.event(constants.EVAL_ACCURACY, top1 / 100, metadata={constants.EPOCH_NUM: epoch})

    def end(self, *, reached: bool) -> None:
        """The run is over: ``success`` where it reached its target. Only the first call counts."""
        if self._ended:
            return
        self._ended = True
        self._end_phase()
        self._end_block()
        status = constants.SUCCESS if reached else constants.ABORTED
        self._log.end(constants.RUN_STOP, metadata={constants.STATUS: status})

    # --- a run that continues in another process ---

    def state(self) -> dict[str, Any]:
        """The lines so far and what is open, in plain types."""
        return {"lines": list(self._lines), "epoch": self._epoch, "stage": self._stage, "phase": self._phase}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on after the lines of ``state``."""
        self._lines = list(state["lines"])
        self._epoch, self._stage, self._phase = state["epoch"], state["stage"], state["phase"]

    # --- inside ---

    def _end_phase(self) -> None:
        if self._phase is not None:
            key = constants.EPOCH_STOP if self._phase == "train" else constants.EVAL_STOP
            self._log.end(key, metadata={constants.EPOCH_NUM: self._epoch})
            self._phase = None

    def _end_block(self) -> None:
        if self._stage is None:
            return
        first = next(e.epoch + 1 for e in self._facts.plan.epochs if e.stage == self._stage)
        self._log.end(constants.BLOCK_STOP, metadata={constants.FIRST_EPOCH_NUM: first})
        self._stage = None

    def _submission(self) -> dict[str, Any]:
        """What MLPerf asks of a run beside its times, by the keys of its log."""
        facts, config = self._facts, self._facts.config
        first = facts.plan.epochs[0]
        return {
            constants.SUBMISSION_BENCHMARK: constants.RESNET if facts.is_imagenet else config.recipe,
            constants.SUBMISSION_DIVISION: constants.OPEN,
            constants.SUBMISSION_ORG: config.report.author,
            constants.SUBMISSION_PLATFORM: facts.machine.hardware,
            constants.SUBMISSION_STATUS: constants.RESEARCH,
            constants.SEED: config.seed,
            constants.GLOBAL_BATCH_SIZE: first.batch_size,
            constants.GRADIENT_ACCUMULATION_STEPS: first.accumulate,
            constants.TRAIN_SAMPLES: facts.plan.num_train,
            constants.EVAL_SAMPLES: facts.num_val,
            constants.OPT_NAME: config.optimizer.kind,
            constants.OPT_BASE_LR: config.optimizer.lr,
            constants.OPT_END_LR: config.schedule.end_lr,
            constants.OPT_LR_WARMUP_EPOCHS: config.schedule.warmup_epochs,
            constants.OPT_WEIGHT_DECAY: config.optimizer.weight_decay,
        }
