"""The callback through what can happen to a run: no room on the disk, errors, an end without a report."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fasttrain.errors import MachineError
from fasttrain.report.facts import RunFacts
from tests.report.conftest import FakeTrainer, TinyRun

MakeFacts = Callable[..., RunFacts]

pytestmark = pytest.mark.usefixtures("no_pictures")


def events(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "report" / "mlperf.log").read_text().splitlines()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def assert_nested(logged: list[dict[str, Any]]) -> None:
    """Every interval that begins ends, the inner one before the outer one, in order of time."""
    opened = []
    for event in logged:
        name, _, end = event["key"].rpartition("_")
        if event["event_type"] == "INTERVAL_START":
            assert end == "start", event
            opened.append(name)
        elif event["event_type"] == "INTERVAL_END":
            assert end == "stop", event
            assert opened.pop() == name, event
    assert opened == []
    times = [event["time_ms"] for event in logged]
    assert times == sorted(times)


@pytest.mark.parametrize("moment", ["before the first epoch", "in training", "in validation", "after an epoch"])
def test_an_error_closes_every_interval_of_the_log(make_facts: MakeFacts, moment: str) -> None:
    facts = make_facts()
    run, trainer = TinyRun(facts), FakeTrainer()
    hooks: Any = trainer
    run.start()
    if moment != "before the first epoch":
        run.report.on_train_epoch_start(hooks, run.module)
    if moment == "in validation":
        run.report.on_validation_start(hooks, run.module)
    if moment == "after an epoch":
        run.report.on_validation_start(hooks, run.module)
        run.report.on_validation_end(hooks, run.module)
    run.report.on_exception(hooks, run.module, RuntimeError())
    logged = events(facts.run_dir)
    assert_nested(logged)
    assert (logged[-1]["key"], logged[-1]["metadata"]["status"]) == ("run_stop", "aborted")


@pytest.mark.parametrize("inside", [True, False], ids=["mid-epoch", "at an epoch's end"])
def test_a_resumed_log_goes_on_after_the_lines_of_the_checkpoint(make_facts: MakeFacts, inside: bool) -> None:
    facts = make_facts()
    first, trainer = TinyRun(facts), FakeTrainer(epoch=1)
    hooks: Any = trainer
    first.start()
    first.epoch(0)
    if inside:
        first.report.on_train_epoch_start(hooks, first.module)
    state = first.checkpoint()
    before = events(facts.run_dir)
    first.report.on_exception(hooks, first.module, KeyboardInterrupt())
    second = TinyRun(facts)
    second.report.load_state_dict(state)
    second.start(epoch=1)
    second.epoch(1)
    second.epoch(2)
    second.end()
    logged = events(facts.run_dir)
    assert logged[: len(before)] == before
    assert_nested(logged)
    fractions = [event["value"] for event in logged if event["key"] == "eval_accuracy"]
    assert fractions == [0.2, 0.8, 0.78]
    assert second.report.state_dict()["resumes"] == 1


def test_a_full_disk_is_an_environment_error_that_names_the_file(
    make_facts: MakeFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = make_facts()
    run = TinyRun(facts)
    run.start()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(MachineError, match=r"metrics\.csv cannot be written: No space left on device") as caught:
            run.epoch(0)
    assert caught.value.exit_code == 4
    assert (facts.run_dir / "metrics.csv").read_text().count("\n") == 1


def test_a_log_that_cannot_be_written_does_not_hide_what_ended_the_run(
    make_facts: MakeFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = make_facts()
    run = TinyRun(facts)
    run.start()
    trainer: Any = FakeTrainer()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(MachineError, match=r"mlperf\.log cannot be written"):
            run.report.on_train_epoch_start(trainer, run.module)
        run.report.on_exception(trainer, run.module, RuntimeError("the loss was not finite"))


def test_a_sanity_check_is_no_validation(make_facts: MakeFacts) -> None:
    facts = make_facts()
    run = TinyRun(facts)
    run.start()
    trainer: Any = FakeTrainer()
    trainer.sanity_checking = True
    run.report.on_validation_start(trainer, run.module)
    run.time.now += 7
    run.report.on_validation_end(trainer, run.module)
    assert run.clock.seconds == 7
    assert "validation" not in run.clock.segments
    assert "eval_start" not in [event["key"] for event in events(facts.run_dir)]


def test_a_run_that_ended_before_its_report_gets_it_later(make_facts: MakeFacts) -> None:
    facts, other = make_facts("killed"), make_facts("straight")
    straight = TinyRun(other).whole()
    killed = TinyRun(facts)
    killed.start()
    for index in range(3):
        killed.epoch(index)
        state = killed.checkpoint()
    later = TinyRun(facts)
    later.report.load_state_dict(state)
    later.report.reopen()
    result = later.report.finish()
    assert {**result, "wall_seconds": 0} == {**straight, "wall_seconds": 0}
    for name in ("result.json", "dawnbench.json", "dawnbench.tsv", "report.html"):
        assert (facts.run_dir / "report" / name).is_file(), name
    assert_nested(events(facts.run_dir))
    assert [event["key"] for event in events(facts.run_dir)].count("run_stop") == 1


def test_the_state_is_the_same_on_every_rank_but_only_the_first_writes(make_facts: MakeFacts) -> None:
    facts = make_facts()
    before = {path: path.read_bytes() for path in facts.run_dir.rglob("*") if path.is_file()}
    first, second = TinyRun(make_facts("first")), TinyRun(facts, rank=1)
    one, other = first.whole(), second.whole()
    assert one == other
    assert first.report.state_dict()["rows"] == second.report.state_dict()["rows"]
    assert {path: path.read_bytes() for path in facts.run_dir.rglob("*") if path.is_file()} == before
