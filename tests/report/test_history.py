"""The rows of a run: what reaches a target, what a resume keeps, and how metrics.csv reads them back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fasttrain.errors import DataError
from fasttrain.report.history import COLUMNS, History, Row, best, first_at, metrics_csv, percent, read_metrics
from tests.report.conftest import make_results

ROW = Row(
    epoch=1,
    step=4,
    seconds=10.0,
    wall_seconds=33.0,
    train_loss=2.5,
    top1=20.0,
    top5=60.0,
    lr=0.5,
    momentum=0.9,
    px=32,
    batch_size=16,
    images_per_second=None,
)


def correct(count: int, num_val: int, epoch: int = 1) -> Row:
    """The row of an epoch with ``count`` right answers."""
    result = replace(make_results()[0], correct1=count, correct5=count, num_val=num_val)
    history = History()
    return replace(history.append(result, seconds=1, wall_seconds=1), epoch=epoch)


@pytest.mark.parametrize(
    ("count", "num_val", "target", "reached"),
    [
        (46_500, 50_000, 93.0, True),
        (46_499, 50_000, 93.0, False),
        (9_400, 10_000, 94.0, True),
        (801, 1_000, 80.1, True),
        (999_999, 1_000_000, 100.0, False),
    ],
)
def test_one_image_decides_whether_a_target_is_reached(count: int, num_val: int, target: float, reached: bool) -> None:
    row = correct(count, num_val)
    assert (first_at([row], "top1", target) is row) == reached
    # The files' digits are on the same side of the target as the count.
    assert (float(percent(row.top1)) >= target) == reached


def test_the_first_row_at_the_target_counts_and_the_first_best_one() -> None:
    rows = [correct(count, 50, epoch) for epoch, count in enumerate((10, 41, 40, 45, 45), start=1)]
    hit, top = first_at(rows, "top1", 80.0), best(rows, "top1")
    assert hit is not None
    assert top is not None
    assert (hit.epoch, top.epoch) == (2, 4)
    assert first_at(rows, "top1", 90.5) is None


def test_metrics_csv_to_the_letter() -> None:
    rows = [ROW, replace(ROW, epoch=2, step=8, top5=None, top1=100 / 3, lr=1 / 3, images_per_second=1234.56)]
    assert metrics_csv(rows) == (
        "epoch,step,seconds,wall_seconds,train_loss,top1,top5,lr,momentum,px,batch_size,images_per_second\n"
        "1,4,10.000,33.000,2.5,20.0,60.0,0.5,0.9,32,16,\n"
        "2,8,10.000,33.000,2.5,33.3333,,0.33333333,0.9,32,16,1234.6\n"
    )


def test_a_lost_loss_and_what_does_not_apply_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(metrics_csv([replace(ROW, top5=None, train_loss=float("nan"))]))
    (row,) = read_metrics(path)
    assert row.top5 is None
    assert row.images_per_second is None
    assert row.train_loss != row.train_loss


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(",".join(COLUMNS).encode() + b"\n\xff\xfe\x00")
    with pytest.raises(DataError, match=r"metrics\.csv: cannot be read"):
        read_metrics(path)


def test_rows_beyond_a_checkpoint_give_way_to_its_own() -> None:
    history = History()
    for index, result in enumerate(make_results()):
        history.append(result, seconds=10.0 * (index + 1), wall_seconds=20.0 * (index + 1))
        if index == 0:
            state = history.state()
    history.load_state(state)
    assert [row.epoch for row in history.rows] == [1]
    row = history.append(make_results()[1], seconds=25, wall_seconds=70)
    assert (row.epoch, row.seconds) == (2, 25)


def test_the_clock_of_a_run_cannot_go_back() -> None:
    history = History()
    history.append(make_results()[0], seconds=10, wall_seconds=10)
    with pytest.raises(ValueError, match="the clock went back in epoch 2"):
        history.append(make_results()[1], seconds=9, wall_seconds=20)
    assert len(history.rows) == 1
