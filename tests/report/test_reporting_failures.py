"""What goes wrong while a report is written costs no figure, and what is written is whole or absent."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.errors import MachineError
from fasttrain.report import page
from fasttrain.report.facts import RunFacts, settings
from fasttrain.report.files import write_json, write_text
from fasttrain.report.history import read_metrics
from tests.report.conftest import TinyRun, make_results

MakeFacts = Callable[..., RunFacts]

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_pictures_that_cannot_be_drawn_leave_the_figures(
    make_facts: MakeFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: object) -> None:
        raise RuntimeError("no <fonts>")

    monkeypatch.setattr(page, "draw_run", fail)
    facts = make_facts()
    TinyRun(facts).whole()
    text = (facts.run_dir / "report" / "report.html").read_text()
    assert "the pictures could not be drawn: RuntimeError: no &lt;fonts&gt;" in text
    assert "time to 80.00% top1" in text


def test_a_page_that_cannot_be_made_leaves_the_result(make_facts: MakeFacts, caplog: pytest.LogCaptureFixture) -> None:
    facts = make_facts()
    (facts.run_dir / "plan.json").unlink()
    with caplog.at_level(logging.WARNING, logger="fasttrain"):
        result = TinyRun(facts).whole()
    assert "report.html could not be written" in caplog.text
    assert json.loads((facts.run_dir / "report" / "result.json").read_text()) == result
    assert not (facts.run_dir / "report" / "report.html").exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.csv"
    write_text(path, "old\n")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(MachineError, match="No space left"):
        write_text(path, "new\n")
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.csv"]
    assert path.read_text() == "old\n"


def test_json_never_holds_what_json_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not (tmp_path / "a.json").exists()


def test_metrics_are_read_as_they_were_written(make_facts: MakeFacts) -> None:
    facts = make_facts()
    run = TinyRun(facts)
    run.whole()
    read = read_metrics(facts.run_dir / "metrics.csv")
    for row, kept in zip(read, run.report.history.rows, strict=True):
        assert (row.epoch, row.step, row.top1, row.top5) == (kept.epoch, kept.step, kept.top1, kept.top5)
        assert (row.px, row.batch_size, row.images_per_second) == (
            kept.px,
            kept.batch_size,
            kept.images_per_second,
        )
        assert row.lr == pytest.approx(kept.lr, rel=1e-7)


def test_each_epoch_is_one_line_in_the_log(make_facts: MakeFacts, said: list[str]) -> None:
    TinyRun(make_facts()).whole()
    assert said == [
        "epoch 1/3 | step 4/16 | 32 px | loss 2.50 | top1 20.00 top5 60.00 | lr 0.5 | n/a images/s | 0:00:10",
        "epoch 2/3 | step 8/16 | 32 px | loss 1.50 | top1 80.00 top5 90.00 | lr 0.25 | 32 images/s | 0:00:20",
        "epoch 3/3 | step 16/16 | 48 px | loss 0.50 | top1 78.00 top5 96.00 | lr 0.1667 | 16 images/s | 0:00:30",
        "stage 0: 32 px, batch 16: 32 images/s",
        "stage 1: 48 px, batch 8: 16 images/s",
        "training: 0:00:30; with the final validation: 0:00:33",
        "seconds of wall time: warm-up 20.00; train stage 0, 32 px 20.00; validation 9.00; checkpoint 6.00; "
        "train stage 1, 48 px 10.00; report 5.00",
    ]


def test_time_is_accounted_for_by_part(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    misc = json.loads((facts.run_dir / "report" / "dawnbench.json").read_text())["misc"]
    assert misc["seconds_by_part"] == {
        "warm-up": 20.0,
        "train stage 0, 32 px": 20.0,
        "validation": 9.0,
        "checkpoint": 6.0,
        "train stage 1, 48 px": 10.0,
        "report": 5.0,
    }
    assert sum(misc["seconds_by_part"].values()) == misc["wall_seconds"]


def test_the_settings_name_all_that_a_second_run_needs(make_facts: MakeFacts) -> None:
    known = settings(make_facts())
    assert known["command"] == "python train.py recipe=tiny optimizer.lr=0.5"
    assert known["batch_size"] == (
        "16 (epochs 1-2) = 1 rank x 1 accumulated x 16; 8 (epoch 3) = 1 rank x 1 accumulated x 8"
    )
    assert known["learning_rate_schedule"] == "linear: peak 0.5, warmup_epochs 1, end_lr 0.001"
    assert known["optimizer"] == "sgd: nesterov"
    assert (known["momentum"], known["weight_decay"]) == ("0.9", "5e-05, none on norm layers and biases")
    assert (known["commit"], known["seeds"], known["deterministic"]) == ("0123abc", [7], True)
    assert known["versions"]["torch"] == "2.14.1"
    assert known["stages"][1] == (
        "stage 1: epoch 3, 48 px, smallest crop 0.5, batch 8, 8 steps an epoch, validated at 48 px with each "
        "image's own aspect ratio"
    )


def test_images_per_second_are_images_over_seconds_not_a_mean_of_rates(make_facts: MakeFacts) -> None:
    run = TinyRun(make_facts())
    run.start()
    for index, (images, seconds) in enumerate(((100, 1.0), (100, 4.0))):
        result = make_results()[index]
        run.report.record(type(result)(**{**vars(result), "rate_images": images, "rate_seconds": seconds}))
    # 200 images in 5 s; the mean of the rates 100 and 25 would be 62.5.
    assert run.report.finish()["images_per_second"] == {"0": 40.0}
