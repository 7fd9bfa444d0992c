"""``dawnbench.tsv`` and ``dawnbench.json`` to the letter."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest

from fasttrain.report import dawnbench
from fasttrain.report.facts import RunFacts
from fasttrain.report.files import write_json
from tests.report.conftest import TinyRun, make_results

MakeFacts = Callable[..., RunFacts]

pytestmark = pytest.mark.usefixtures("no_pictures")

TODAY = date(2026, 11, 30)


def test_an_imagenet_entry_to_the_letter(make_facts: MakeFacts) -> None:
    facts = replace(make_facts(num_classes=1000, report={"cost_per_hour": 3.5}), num_val=50_000)
    path = facts.run_dir / "entry.json"
    write_json(path, dawnbench.entry(facts, {"resumes": 0}, today=TODAY))
    assert path.read_text() == (
        "{\n"
        '  "version": "v1.0",\n'
        '  "author": "An Author",\n'
        '  "authorEmail": "author@example.org",\n'
        '  "framework": "fasttrain 0.1.0 (PyTorch 2.14.1)",\n'
        '  "model": "resnet18",\n'
        '  "hardware": "1 x NVIDIA H200",\n'
        '  "costPerHour": 3.5,\n'
        '  "timestamp": "2026-11-30",\n'
        '  "usedBlacklist": true,\n'
        '  "misc": {\n'
        '    "resumes": 0\n'
        "  }\n"
        "}\n"
    )


def test_only_all_50000_images_of_imagenet_hold_the_disputed_ones(make_facts: MakeFacts) -> None:
    def used(**changes: object) -> object:
        num_val = changes.pop("num_val")
        facts = replace(make_facts(**changes), num_val=num_val)
        return dawnbench.entry(facts, {}, today=TODAY).get("usedBlacklist", "absent")

    assert used(num_classes=1000, num_val=50_000) is True
    assert used(num_classes=1000, num_val=50_000 - 1_762) is False
    assert used(num_classes=10, num_val=50_000) == "absent"
    assert used(data={"kind": "cifar10"}, num_val=10_000) == "absent"


def test_cifar10s_table_to_the_letter(make_facts: MakeFacts) -> None:
    facts = make_facts(data={"kind": "cifar10"})
    TinyRun(facts).whole()
    assert (facts.run_dir / "report" / "dawnbench.tsv").read_bytes() == (
        b"epoch\thours\ttop1Accuracy\n1\t0.00277778\t20.0\n2\t0.00555556\t80.0\n3\t0.00833333\t78.0\n"
    )


def test_few_classes_have_no_top5_column(make_facts: MakeFacts) -> None:
    facts = make_facts(num_classes=3)
    TinyRun(facts, results=[replace(result, top5=None) for result in make_results()]).whole()
    with (facts.run_dir / "report" / "dawnbench.tsv").open() as file:
        assert next(csv.reader(file, delimiter="\t")) == ["epoch", "hours", "top1Accuracy"]


def test_the_first_row_at_the_target_gives_the_time(make_facts: MakeFacts) -> None:
    facts = make_facts(target={"metric": "top5", "value": 90.0, "stop": False})
    result = TinyRun(facts).whole()
    with (facts.run_dir / "report" / "dawnbench.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    first = next(row for row in rows if float(row["top5Accuracy"]) >= 90.0)
    assert int(first["epoch"]) == result["epochs_to_target"] == 2
    assert 3600 * float(first["hours"]) == pytest.approx(result["seconds_to_target"], abs=1e-3)
    hours = [float(row["hours"]) for row in rows]
    assert hours == sorted(hours)


def test_a_runs_entry_says_how_to_run_it_again(make_facts: MakeFacts) -> None:
    facts = make_facts()
    run = TinyRun(facts)
    run.report.skipped_files = ["train/a/broken.JPEG"]
    run.whole()
    entry = json.loads((facts.run_dir / "report" / "dawnbench.json").read_text())
    assert date.fromisoformat(entry["timestamp"]) <= date.today()
    misc = entry["misc"]
    assert misc["skipped_files"] == ["train/a/broken.JPEG"]
    for key in (
        "command",
        "commit",
        "versions",
        "seeds",
        "val_images",
        "cache",
        "learning_rate_schedule",
        "batch_size",
        "optimizer",
        "momentum",
        "weight_decay",
    ):
        assert misc[key] not in (None, "", []), key
    assert (misc["resumes"], misc["skipped_steps"]) == (0, 0)
