"""What ``result.json`` says where a figure does not apply, and the one line at a run's end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fasttrain.report.callback import epoch_line, seconds_line
from fasttrain.report.facts import RunFacts, settings
from fasttrain.report.finished_run import load_run
from fasttrain.report.history import History
from fasttrain.report.page import run_page
from fasttrain.report.result import accuracy, cost_usd, duration, wanted
from tests.report.conftest import TinyRun, make_results

MakeFacts = Callable[..., RunFacts]

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_five_classes_have_no_top5(make_facts: MakeFacts) -> None:
    facts = make_facts(num_classes=5)
    TinyRun(facts, results=[replace(result, top5=None) for result in make_results()]).whole()
    result = json.loads((facts.run_dir / "report" / "result.json").read_text())
    assert result["top5"] is None
    assert result["best_top5"] is None
    assert (result["top1"], result["best_top1"]) == (78, 80)


def test_a_stage_with_too_few_steps_has_no_rate(make_facts: MakeFacts) -> None:
    first, second, third = make_results()
    results = [first, replace(second, rate_images=0, rate_seconds=0.0), third]
    facts = make_facts()
    result = TinyRun(facts, results=results).whole()
    assert result["images_per_second"] == {"0": None, "1": 16.0}
    rows = (facts.run_dir / "metrics.csv").read_text().splitlines()[1:]
    assert [row.rpartition(",")[2] for row in rows] == ["", "", "16.0"]


def test_a_run_that_stopped_at_its_target_names_the_epochs_of_the_plan(make_facts: MakeFacts) -> None:
    run = TinyRun(make_facts(), results=make_results()[:2])
    result = run.whole()
    assert (result["epochs"], result["epochs_to_target"]) == (2, 2)
    assert run.report.line(result) == "time to 80.00% top1: 0:00:20 (epoch 2 of 3) on 1 x NVIDIA H200; N=50"


def test_what_lightning_takes_down_after_the_last_epoch_is_not_training(make_facts: MakeFacts) -> None:
    result = TinyRun(make_facts(report={"cost_per_hour": 3600.0})).whole()
    assert result["seconds"] == 30
    assert result["cost_usd"] == 30
    # Start 20, epochs 30, validation 9, checkpoints 6, the end 5.
    assert result["wall_seconds"] == 70


@pytest.mark.parametrize(
    ("value", "text"), [(93, "93.00"), (93.0, "93.00"), (75.9, "75.90"), (93.005, "93.005"), (99.999, "99.999")]
)
def test_a_target_is_named_with_all_its_digits(value: float, text: str) -> None:
    assert wanted(value) == text


def test_a_missed_target_with_more_digits_does_not_read_as_reached(make_facts: MakeFacts) -> None:
    run = TinyRun(make_facts(target={"metric": "top1", "value": 80.001, "stop": False}))
    line = run.report.line(run.whole())
    assert line.startswith("target not reached: best 80.00% top1 (epoch 2 of 3), wanted 80.001%;")


@pytest.mark.parametrize(
    ("value", "text"), [(92.9999, "92.99"), (93.0, "93.00"), (100.0, "100.00"), (0.0049, "0.00"), (80.1, "80.10")]
)
def test_accuracy_is_cut_not_rounded(value: float, text: str) -> None:
    assert accuracy(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.018, "1.02 s"),
        (9.99, "9.99 s"),
        (10, "0:00:10"),
        (59.6, "0:01:00"),
        (1296.4, "0:21:36"),
        (36_000, "10:00:00"),
    ],
)
def test_times_are_hours_minutes_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_cost_is_the_price_of_the_hours() -> None:
    # Alibaba's entry of 16 x 8 V100: 157.55 s at $329.60 an hour.
    assert cost_usd(329.60, 157.55) == pytest.approx(14.42, abs=0.005)
    assert cost_usd(None, 157.55) is None
    assert cost_usd(329.60, None) is None


def test_weights_and_regularisation_are_told_where_they_are_on(make_facts: MakeFacts) -> None:
    names = {"mixup", "jsd_alpha", "augment", "weight_averaging", "batchnorm"}
    assert not names & settings(make_facts()).keys()
    facts = make_facts(
        data={"augment": "rand-m9"},
        model={"batchnorm": {"momentum": 0.2, "bias_lr_scale": 1.0, "sync": False, "recalibrate_images": 0}},
        trainer={
            "jsd_alpha": 12.0,
            "mixup": {"alpha": 0.2, "cutmix_alpha": 0.0},
            "averaging": {"kind": "swa", "from_epoch": 2.0},
        },
    )
    told = settings(facts)
    assert {name: told[name] for name in names} == {
        "mixup": {"alpha": 0.2},
        "augment": "rand-m9",
        "jsd_alpha": 12.0,
        "weight_averaging": {"kind": "swa", "from_epoch": 2.0},
        "batchnorm": {"momentum": 0.2},
    }


def test_both_accuracies_stand_in_the_epochs_line(make_facts: MakeFacts) -> None:
    first, *_ = make_results()
    row = History().append(replace(first, raw_top1=18.5, raw_top5=58.25), seconds=1.0, wall_seconds=2.0)
    assert "top1 20.00 top5 60.00 (raw weights: top1 18.50 top5 58.25) |" in epoch_line(row, make_facts())
    plain = History().append(first, seconds=1.0, wall_seconds=2.0)
    assert "raw" not in epoch_line(plain, make_facts())


def test_the_raw_weights_have_their_own_figures_beside_the_averaged_ones(make_facts: MakeFacts) -> None:
    results = [
        replace(result, raw_top1=raw_top1, raw_top5=raw_top5)
        for result, raw_top1, raw_top5 in zip(make_results(), (18.0, 76.0, 74.0), (58.0, 88.0, 94.0), strict=True)
    ]
    facts = replace(make_facts("averaged"), weights="averaged")
    averaged = TinyRun(facts, results=results).whole()
    assert averaged["weights"] == "averaged"
    assert [averaged[key] for key in ("top1", "top5", "raw_top1", "raw_top5")] == [78.0, 96.0, 74.0, 94.0]
    assert "last top1, top5 of the raw weights</th><td>74.00 %, 94.00 %<" in run_page(load_run(facts.run_dir))
    plain = make_facts("plain")
    raw = TinyRun(plain).whole()
    assert [raw[key] for key in ("weights", "raw_top1", "raw_top5")] == ["raw", None, None]
    assert "of the raw weights" not in run_page(load_run(plain.run_dir))
    few = replace(make_facts("few_classes", num_classes=5), weights="averaged")
    without_top5 = [replace(result, top5=None, raw_top5=None) for result in results]
    assert TinyRun(few, results=without_top5).whole()["raw_top5"] is None


def test_the_final_validation_is_counted_where_there_was_one(make_facts: MakeFacts) -> None:
    result = TinyRun(make_facts()).whole()
    # Three epochs of 10 s, and the last one's validation of 3 s.
    assert (result["seconds"], result["seconds_with_final_validation"]) == (30.0, 33.0)
    assert seconds_line(result) == "training: 0:00:30; with the final validation: 0:00:33"
    at_target = TinyRun(make_facts("at_target"), results=make_results()[:2]).whole()
    assert at_target["seconds_with_final_validation"] == 23.0


def test_the_line_names_the_views_that_count(make_facts: MakeFacts) -> None:
    run = TinyRun(make_facts(trainer={"test_time_augmentation": "flip"}))
    assert run.report.line(run.whole()).endswith("N=50; test-time augmentation flip")
