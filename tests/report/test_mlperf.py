"""mlperf.log by the rules of the package that defines it, and through kills in the middle of an epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.compliance_checker.mlp_compliance import make_checker

from fasttrain.report.facts import RunFacts
from tests.report.conftest import FakeTrainer, TinyRun

MakeFacts = Callable[..., RunFacts]

pytestmark = pytest.mark.usefixtures("no_pictures")


def events(facts: RunFacts) -> list[tuple[str, Any]]:
    """Key and epoch of each line."""
    lines = (facts.run_dir / "report" / "mlperf.log").read_text().splitlines()
    parsed = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    return [(event["key"], event["metadata"].get("epoch_num")) for event in parsed]


def test_the_packages_own_checker_accepts_an_imagenet_run(
    make_facts: MakeFacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = make_facts(num_classes=1000)
    TinyRun(facts).whole()
    log = facts.run_dir / "report" / "mlperf.log"
    assert '"submission_benchmark", "value": "resnet"' in log.read_text()
    checker = make_checker("training", "3.1.0", quiet=False, werror=True)
    assert checker.check_file(str(log), "training_3.1.0/common.yaml")


def test_lines_name_no_folder_of_the_machine(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    for line in (facts.run_dir / "report" / "mlperf.log").read_text().splitlines():
        assert json.loads(line.removeprefix(":::MLLOG "))["metadata"]["file"] == "fasttrain/report/mlperf.py"


def test_a_missed_target_and_an_exception_end_as_aborted(make_facts: MakeFacts) -> None:
    for name, target in (("missed", 99.0), ("broken", 10.0)):
        facts = make_facts(name, target={"value": target})
        run = TinyRun(facts)
        if name == "missed":
            run.whole()
        else:
            run.start()
            run.epoch(0)
            trainer: Any = FakeTrainer()
            run.report.on_exception(trainer, run.module, KeyboardInterrupt())
        last = (facts.run_dir / "report" / "mlperf.log").read_text().splitlines()[-1]
        assert '"run_stop"' in last
        assert '"status": "aborted"' in last


@pytest.mark.parametrize("hook_again", [True, False])
def test_a_resume_inside_an_epoch_begins_it_once(make_facts: MakeFacts, hook_again: bool) -> None:
    facts = make_facts()
    first = TinyRun(facts)
    first.start()
    first.epoch(0)
    trainer: Any = FakeTrainer(epoch=1)
    first.report.on_train_epoch_start(trainer, first.module)
    state = first.checkpoint()
    # Stopped by a signal after the checkpoint: the end that was logged is not the run's.
    first.report.on_exception(trainer, first.module, RuntimeError())

    second = TinyRun(facts)
    second.report.load_state_dict(state)
    second.start(epoch=1)
    if hook_again:
        second.report.on_train_epoch_start(trainer, second.module)
    second.epoch(1)
    second.epoch(2)
    second.report.finish()
    seen = events(facts)
    for epoch in (1, 2, 3):
        for key in ("epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy"):
            assert seen.count((key, epoch)) == 1, (key, epoch)
    assert [key for key, _ in seen].count("run_stop") == 1


def test_other_data_sets_have_the_name_of_their_recipe(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    assert '"submission_benchmark", "value": "tiny"' in (facts.run_dir / "report" / "mlperf.log").read_text()
