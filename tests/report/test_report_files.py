"""metrics.csv, DAWNBench's files, result.json and mlperf.log of a run with hand-written figures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fasttrain.report import dawnbench
from fasttrain.report.facts import RunFacts
from fasttrain.report.result import accuracy, duration, time_line
from tests.report.conftest import TinyRun, make_config

MakeFacts = Callable[..., RunFacts]

METRICS = [
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
]
RESULT = [
    "schema",
    "recipe",
    "command",
    "commit",
    "seed",
    "hardware",
    "num_devices",
    "versions",
    "target",
    "reached",
    "epochs_to_target",
    "seconds_to_target",
    "wall_seconds_to_target",
    "epochs",
    "seconds",
    "wall_seconds",
    "num_val",
    "top1",
    "top5",
    "best_top1",
    "best_top5",
    "weights",
    "images_per_second",
    "skipped_files",
    "cost_usd",
]


def logged(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "report" / "mlperf.log").read_text().splitlines()
    assert all(line.startswith(":::MLLOG ") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def test_metrics_have_a_row_an_epoch_with_both_clocks(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    with (facts.run_dir / "metrics.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert reader.fieldnames == METRICS
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [float(row["seconds"]) for row in rows] == [10, 20, 30]
    # 20 s before training; each epoch 10, its validation 3, the checkpoint of the one before 2.
    assert [float(row["wall_seconds"]) for row in rows] == [33, 48, 63]
    assert [float(row["top1"]) for row in rows] == [20, 80, 78]
    assert [row["images_per_second"] for row in rows] == ["", "32.0", "16.0"]


def test_tsv_for_imagenet_and_for_cifar10(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    assert (facts.run_dir / "report" / "dawnbench.tsv").read_text() == (
        "epoch\thours\ttop1Accuracy\ttop5Accuracy\n"
        "1\t0.00277778\t20.0\t60.0\n2\t0.00555556\t80.0\t90.0\n3\t0.00833333\t78.0\t96.0\n"
    )
    cifar = make_facts("cifar", data={"kind": "cifar10"})
    TinyRun(cifar).whole()
    lines = (cifar.run_dir / "report" / "dawnbench.tsv").read_text().splitlines()
    assert lines[:2] == ["epoch\thours\ttop1Accuracy", "1\t0.00277778\t20.0"]


def test_dawnbench_entry_has_the_required_keys(make_facts: MakeFacts) -> None:
    facts = make_facts(report={"cost_per_hour": 3.6})
    entry = dawnbench.entry(facts, {"seed": 7}, today=date(2026, 11, 30))
    assert list(entry) == [
        "version",
        "author",
        "authorEmail",
        "framework",
        "model",
        "hardware",
        "costPerHour",
        "timestamp",
        "misc",
    ]
    assert entry["version"] == "v1.0"
    assert entry["framework"] == "fasttrain 0.1.0 (PyTorch 2.14.1)"
    assert entry["timestamp"] == "2026-11-30"
    assert "costPerHour" not in dawnbench.entry(make_facts(), {}, today=date(2026, 11, 30))
    imagenet = dawnbench.entry(make_facts(num_classes=1000), {}, today=date(2026, 11, 30))
    # Fifty images are not the full set, so the disputed ones are not said to be in it.
    assert imagenet["usedBlacklist"] is False


def test_result_of_a_run_that_reached_its_target(make_facts: MakeFacts) -> None:
    facts = make_facts(report={"cost_per_hour": 3.6})
    run = TinyRun(facts)
    result = run.whole()
    on_disk = json.loads((facts.run_dir / "report" / "result.json").read_text())
    assert list(on_disk) == RESULT
    assert on_disk == result
    assert (result["reached"], result["epochs_to_target"], result["seconds_to_target"]) == (True, 2, 20)
    assert result["wall_seconds_to_target"] == 48
    assert (result["top1"], result["top5"], result["best_top1"], result["best_top5"]) == (78, 96, 80, 96)
    assert result["images_per_second"] == {"0": 32.0, "1": 16.0}
    # Dollars by the clock without validation and checkpoints: 30 s of 3.6 dollars an hour.
    assert result["cost_usd"] == pytest.approx(0.03)
    assert run.report.line(result) == "time to 80.00% top1: 0:00:20 (epoch 2 of 3) on 1 x NVIDIA H200; N=50"


def test_result_of_a_run_that_missed_its_target(make_facts: MakeFacts) -> None:
    run = TinyRun(make_facts(target={"metric": "top1", "value": 80.01, "stop": False}))
    result = run.whole()
    assert result["reached"] is False
    assert result["seconds_to_target"] is result["epochs_to_target"] is result["cost_usd"] is None
    assert run.report.line(result) == (
        "target not reached: best 80.00% top1 (epoch 2 of 3), wanted 80.01%; 0:00:30 on 1 x NVIDIA H200; N=50"
    )


def test_few_classes_have_no_top5(make_facts: MakeFacts) -> None:
    facts = make_facts(num_classes=5)
    assert not facts.has_top5
    assert make_facts(num_classes=6).has_top5


def test_a_stopped_run_has_nulls_and_a_sentence(make_facts: MakeFacts) -> None:
    run = TinyRun(make_facts())
    run.start()
    result = run.report.finish()
    assert result["top1"] is result["best_top5"] is None
    assert time_line(result, [], planned_epochs=3).startswith("target not reached: no epoch was finished")


def test_accuracy_is_never_rounded_up_to_a_target() -> None:
    assert accuracy(92.999) == "92.99"
    assert accuracy(93.0) == "93.00"
    assert duration(3599.6) == "1:00:00"


def test_history_comes_back_from_a_checkpoint_once(make_facts: MakeFacts) -> None:
    straight = make_facts("straight")
    TinyRun(straight).whole()
    facts = make_facts("stopped")
    first = TinyRun(facts)
    first.start()
    first.epoch(0)
    state = first.checkpoint()
    first.epoch(1)  # a row that no checkpoint holds: the process is killed here
    second = TinyRun(facts)
    second.report.load_state_dict(state)
    second.start(epoch=1)
    second.epoch(1)
    second.epoch(2)
    second.report.finish()
    with (facts.run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [float(row["seconds"]) for row in rows] == [10, 20, 30]
    assert [float(row["wall_seconds"]) for row in rows] == sorted(float(row["wall_seconds"]) for row in rows)
    tsvs = [(path / "report" / "dawnbench.tsv").read_text() for path in (straight.run_dir, facts.run_dir)]
    assert tsvs[0] == tsvs[1]


def test_an_epoch_cannot_be_recorded_twice(make_facts: MakeFacts) -> None:
    run = TinyRun(make_facts())
    run.start()
    run.epoch(0)
    with pytest.raises(ValueError, match="epoch 1 was recorded where epoch 2 was due"):
        run.epoch(0)


def test_only_rank_0_writes(make_facts: MakeFacts) -> None:
    facts = make_facts()
    before = sorted(facts.run_dir.rglob("*"))
    TinyRun(facts, rank=1).whole()
    assert sorted(facts.run_dir.rglob("*")) == before


def test_mlperf_log_is_paired_and_in_order(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    events = logged(facts.run_dir)
    keys = [event["key"] for event in events]
    assert keys[0] == "init_start"
    assert keys[-1] == "run_stop"
    assert events[-1]["metadata"]["status"] == "success"
    times = [event["time_ms"] for event in events]
    assert times == sorted(times)
    for what in ("run", "block", "epoch", "eval"):
        starts, stops = keys.count(f"{what}_start"), keys.count(f"{what}_stop")
        assert starts == stops == {"run": 1, "block": 2, "epoch": 3, "eval": 3}[what]
    accuracies = [event["value"] for event in events if event["key"] == "eval_accuracy"]
    assert accuracies == [0.2, 0.8, 0.78]
    values = {event["key"]: event["value"] for event in events}
    assert (values["seed"], values["train_samples"], values["eval_samples"]) == (7, 64, 50)


def test_mlperf_log_of_a_resumed_run_has_each_event_once(make_facts: MakeFacts) -> None:
    facts = make_facts()
    first = TinyRun(facts)
    first.start()
    first.epoch(0)
    state = first.checkpoint()
    second = TinyRun(facts)
    second.report.load_state_dict(state)
    second.start(epoch=1)
    second.epoch(1)
    second.epoch(2)
    second.report.finish()
    keys = [event["key"] for event in logged(facts.run_dir)]
    assert [keys.count(key) for key in ("init_start", "run_start", "epoch_start", "run_stop")] == [1, 1, 3, 1]


def test_config_of_the_fixture_is_typed() -> None:
    assert make_config().optimizer.lr == 0.5
