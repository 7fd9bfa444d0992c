"""The line after each measurement, and reports of which not all is there yet."""

from __future__ import annotations

import pytest

from fasttrain.bench.arguments import read_step_flags
from fasttrain.bench.arms import Shape, build_arms
from fasttrain.bench.data_report import BARE, TOGETHER, PathResult, PxResult, report_needs, report_path
from fasttrain.bench.data_runs import DataRun
from fasttrain.bench.figures import Outcome
from fasttrain.bench.first_pass import FirstPass, report_first_pass
from fasttrain.bench.measure import Drained
from fasttrain.bench.progress import Watch
from fasttrain.bench.stage_change import StageChanges, Visit, report
from fasttrain.bench.step import rates_text, within
from fasttrain.bench.step_report import ShapeResult, report_arm, report_files_over_random, report_recipe
from fasttrain.bench.training import Measured
from fasttrain.config.compose import compose_run
from fasttrain.report.history import Row
from fasttrain.strategy.world import World

ALONE = World(rank=0, local_rank=0, size=1, local_size=1, launcher="self")
SMALL, LARGE = Shape(32, 8), Shape(48, 8)


def measured(shape: Shape, rate: float | None, *, fills: bool = False, seconds: float = 0.0) -> Measured:
    row = Row(
        epoch=1,
        step=6,
        seconds=seconds,
        wall_seconds=seconds,
        train_loss=1.0,
        top1=None,
        top5=None,
        lr=0.1,
        momentum=0.9,
        px=shape.px,
        batch_size=shape.batch_size,
        images_per_second=rate,
    )
    return Measured(row, fills=fills, profiled=False, peak_bytes=None, launches=None)


def test_the_line_of_a_training(said: list[str]) -> None:
    epochs = [
        measured(SMALL, 10, fills=True, seconds=4.0),
        measured(SMALL, 1000, seconds=5.0),
        measured(SMALL, 3000, seconds=6.0),
        measured(LARGE, None, fills=True, seconds=8.5),
    ]
    text = rates_text(epochs, [SMALL, LARGE])
    assert text == "32 px, batch 8: 2,000 images/s; 48 px, batch 8: no step timed"
    # 4 s and 2.5 s.
    assert within(epochs, 12.34) == "12.3 s warm-up and compilation, 6.5 s epochs that fill caches"
    assert within(epochs[1:3], 0.5) == "0.5 s warm-up and compilation"
    Watch().say("round 1/2", "", text, within="1.0 s warm-up")
    (line,) = said
    assert line.startswith(f"round 1/2 | {text} | ")
    assert line.endswith(" s, of which 1.0 s warm-up")


def test_shapes_and_arms_without_a_rate_are_left_out() -> None:
    words = ["recipe=quickstart", "data=imagefolder", "data.num_train=80", "data.num_classes=16", "--batch", "8"]
    words += ["trainer.accelerator=cpu", "--px", "32,48", "--data", "random,files"]
    random, files = build_arms(read_step_flags(words))
    results = {(arm.label, shape): ShapeResult() for arm in (random, files) for shape in arm.shapes}
    outcome = Outcome()
    report_arm(outcome, random, results, ALONE, num_classes=16)
    report_files_over_random(outcome, [random, files], results)
    assert outcome == Outcome()
    for label, rate in (("random", 200.0), ("files", 100.0)):
        results[label, SMALL].add(measured(SMALL, rate))
    results["random", LARGE].add(measured(LARGE, 50.0))
    results["files", LARGE].add(measured(LARGE, 50.0, fills=True))
    for arm in (random, files):
        report_arm(outcome, arm, results, ALONE, num_classes=16)
    report_recipe(outcome, files, results, ALONE)
    report_files_over_random(outcome, [random, files], results)
    assert [(figure.name, figure.values) for figure in outcome.figures if figure.unit != "ms"] == [
        ("step, 32 px, batch 8, random", (200.0,)),
        ("step, 48 px, batch 8, random", (50.0,)),
        ("step, 32 px, batch 8, files", (100.0,)),
        ("files over random, 32 px, batch 8", (0.5,)),
    ]
    assert "no projected time of the recipe, files: no rate at 48 px, batch 8" in outcome.notes


def test_a_data_path_of_which_not_all_is_drained() -> None:
    run = DataRun("", compose_run(["recipe=quickstart", "data.cache=off"]))
    drained = {"read": [Drained(10.0, 1.0), Drained(30.0, 1.0)], TOGETHER: [Drained(5.0, 2.0)], BARE: []}
    path = PathResult(run, "dali", sides=[PxResult(32, TOGETHER, drained), PxResult(48, TOGETHER, {TOGETHER: []})])
    outcome = Outcome()
    report_path(outcome, path, {32: 7.0, 48: 6.0}, 8)
    assert [(figure.name, figure.values) for figure in outcome.figures if figure.unit == "images/s"] == [
        ("read, 32 px", (10.0, 30.0)),
        ("train_epoch, 32 px", (5.0,)),
        ("need of the training step, 32 px", (7.0,)),
    ]
    # What limits is not known while a part has not been measured.
    assert outcome.verdicts == {}
    drained[BARE].append(Drained(4.0, 2.0))
    outcome = Outcome()
    report_path(outcome, path, {}, 8)
    (ratio,) = (figure for figure in outcome.figures if figure.unit == "ratio")
    assert ratio.values == (1.25,)
    assert outcome.verdicts.keys() == {"32 px"}


def test_needs_without_a_data_path() -> None:
    outcome = Outcome()
    report_needs(outcome, {})
    assert outcome == Outcome()
    report_needs(outcome, {32: 7.0})
    assert [(figure.name, figure.values) for figure in outcome.figures] == [
        ("need of the training step, 32 px", (7.0,))
    ]


def test_stage_changes_and_first_passes_of_which_not_all_are_there() -> None:
    changes, outcome = StageChanges("", on_gpu=False), Outcome()
    report(outcome, changes)
    changes.visits.append(Visit(32, 0.0, (0.1, 0.1), 0.0, 100.0))
    report(outcome, changes)
    first_pass = FirstPass("", 32)
    report_first_pass(outcome, first_pass)
    assert outcome == Outcome()
    changes.visits.append(Visit(48, 0.3, (0.1, 0.1), 0.0, 110.0))
    report(outcome, changes)
    first_pass.decoded += [10.0, 20.0]
    first_pass.whole.append(4.0)
    first_pass.trained.append(5.0)
    report_first_pass(outcome, first_pass)
    values = {figure.name: figure.values for figure in outcome.figures}
    assert values["training time lost by a stage change"] == pytest.approx((200.0,))
    assert values["resident memory of the process after 1 change"] == (110.0,)
    assert values["decode only, 32 px"] == (10.0, 20.0)
    assert values["first pass over decode only, 32 px"] == (0.5,)
    assert values["first pass over decode only, whole images, 32 px"] == (1.25,)
