"""What every epoch gave: the rows of ``metrics.csv``, kept in the checkpoint for a resume to rewrite."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fasttrain.errors import DataError, Problem
from fasttrain.trainer.results import EpochResult

COLUMNS = (
    "epoch",
    "step",
    "seconds",
    "wall_seconds",
    "train_loss",
    "top1",
    "top5",
    "lr",
    "momentum",
    "px",
    "batch_size",
    "images_per_second",
)

# Digits are enough that no accuracy of up to a million images changes its side of a target.
ACCURACY_DIGITS = 4


@dataclass(frozen=True)
class Row:
    """One epoch, after its validation if it had one.

    Attributes:
        epoch: From 1.
        step: Optimizer steps completed.
        seconds, wall_seconds: The clock's two figures.
        train_loss: Mean of the epoch.
        top1, top5: Percent of the validation images; None without a validation, top5 also with fewer than 6 classes.
        lr, momentum: Of the last update.
        px, batch_size: Of training; the batch over all ranks.
        images_per_second: Over all ranks, without the first steps of a stage; None where nothing was left.
        stage: Zero-based row of the stage table; None in a row read from a file.
        rate_images, rate_seconds: What images_per_second is made of.
        skipped_steps: Updates that the loss scaler refused.
        raw_top1, raw_top5: Of the weights as trained, where top1 and top5 are of the averaged ones; not in the file.
        plain_top1: Percent without test-time augmentation, where the run has one; not in the file.
    """

    epoch: int
    step: int
    seconds: float
    wall_seconds: float
    train_loss: float
    top1: float | None
    top5: float | None
    lr: float
    momentum: float
    px: int
    batch_size: int
    images_per_second: float | None
    stage: int | None = None
    rate_images: int = 0
    rate_seconds: float = 0.0
    skipped_steps: int = 0
    raw_top1: float | None = None
    raw_top5: float | None = None
    plain_top1: float | None = None

    def accuracy(self, metric: str) -> float | None:
        """Percent, of ``top1`` or ``top5``."""
        return self.top1 if metric == "top1" else self.top5


class History:
    """The rows of a run, epochs 1 to N, each once and in order."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, result: EpochResult, *, seconds: float, wall_seconds: float) -> Row:
        """Add what one epoch gave.

        Raises:
            ValueError: The epoch is not the next one, or its time lies before the last one's.
        """
        expected = len(self.rows) + 1
        if result.epoch != expected:
            raise ValueError(f"epoch {result.epoch} was recorded where epoch {expected} was due")
        if self.rows and seconds < self.rows[-1].seconds:
            raise ValueError(f"the clock went back in epoch {result.epoch}: {seconds} s")
        row = Row(
            epoch=result.epoch,
            step=result.step,
            seconds=seconds,
            wall_seconds=wall_seconds,
            train_loss=result.train_loss,
            top1=None if result.top1 is None else 100 * result.correct1 / result.num_val,
            top5=None if result.top5 is None else 100 * result.correct5 / result.num_val,
            lr=result.lr,
            momentum=result.momentum,
            px=result.px,
            batch_size=result.batch_size,
            images_per_second=rate([result]),
            stage=result.stage,
            rate_images=result.rate_images,
            rate_seconds=result.rate_seconds,
            skipped_steps=result.skipped_steps,
            raw_top1=result.raw_top1,
            raw_top5=result.raw_top5,
            plain_top1=result.plain_top1,
        )
        self.rows.append(row)
        return row

    def state(self) -> list[dict[str, Any]]:
        """The rows in plain types."""
        return [asdict(row) for row in self.rows]

    def load_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Take the rows of ``state`` in place of those held now."""
        self.rows = [Row(**row) for row in state]


def rate(parts: Sequence[Row] | Sequence[EpochResult]) -> float | None:
    """Images over seconds of several epochs together, all ranks; None where no step was timed."""
    seconds = sum(part.rate_seconds for part in parts)
    return sum(part.rate_images for part in parts) / seconds if seconds > 0 else None


def first_at(rows: Sequence[Row], metric: str, value: float) -> Row | None:
    """The first epoch whose accuracy is at least ``value`` percent."""
    return next((row for row in rows if (row.accuracy(metric) or 0.0) >= value), None)


def best(rows: Sequence[Row], metric: str) -> Row | None:
    """The first epoch with the highest accuracy; None where there is none."""
    having = [row for row in rows if row.accuracy(metric) is not None]
    return max(having, key=lambda row: (row.accuracy(metric) or 0.0, -row.epoch), default=None)


def percent(value: float) -> str:
    """An accuracy as the files give it."""
    return repr(round(value, ACCURACY_DIGITS))


def metrics_csv(rows: Sequence[Row]) -> str:
    """The content of ``metrics.csv``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(
            [
                row.epoch,
                row.step,
                f"{row.seconds:.3f}",
                f"{row.wall_seconds:.3f}",
                f"{row.train_loss:.6g}",
                "" if row.top1 is None else percent(row.top1),
                "" if row.top5 is None else percent(row.top5),
                f"{row.lr:.8g}",
                f"{row.momentum:.8g}",
                row.px,
                row.batch_size,
                "" if row.images_per_second is None else f"{row.images_per_second:.1f}",
            ]
        )
    return text.getvalue()


def read_metrics(path: Path) -> list[Row]:
    """The rows of a ``metrics.csv``.

    Raises:
        DataError: The file cannot be read, has other columns, or a line that is not a row.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(Problem(f"{path}: cannot be read: {error}")) from error
    reader = csv.DictReader(io.StringIO(text))
    rows = []
    try:
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise DataError(Problem(f"{path}: expected the columns {','.join(COLUMNS)}"))
        for record in reader:
            rows.append(_row(record))
    except (TypeError, ValueError, csv.Error) as error:
        raise DataError(Problem(f"{path}, line {reader.line_num}: not a row: {error}")) from error
    return rows


def _row(record: Mapping[str, str]) -> Row:
    whole = {"epoch", "step", "px", "batch_size"}
    optional = {"top1", "top5", "images_per_second"}
    values: dict[str, Any] = {}
    for column in fields(Row)[: len(COLUMNS)]:
        text = record[column.name]
        if text == "" and column.name in optional:
            values[column.name] = None
        else:
            values[column.name] = int(text) if column.name in whole else float(text)
    return Row(**values)
