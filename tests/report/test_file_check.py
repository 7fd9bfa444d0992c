"""Files of a run that were edited by hand: the file and the key are named, and nothing breaks inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fasttrain.errors import DataError
from fasttrain.report.compare import report_runs
from fasttrain.report.facts import RunFacts
from fasttrain.report.file_check import OF_PLAN, OF_RESULT, check_plan, check_result
from fasttrain.report.result import LATER_KEYS
from tests.report.conftest import PLAN_JSON, TinyRun

NULLABLE = {
    *("commit", "test_time_augmentation", "epochs_to_target", "seconds_to_target", "wall_seconds_to_target"),
    *("cost_usd", "seconds_with_final_validation", "top1", "top5", "best_top1", "best_top5"),
    *("plain_top1", "raw_top1", "raw_top5"),
}
OBJECTS = {"versions", "images_per_second"}


@pytest.fixture
def result(make_facts: Callable[..., RunFacts], no_pictures: None) -> dict[str, Any]:
    return TinyRun(make_facts("run")).whole()


def refused(check: Callable[[Path, dict[str, Any]], None], document: dict[str, Any]) -> str:
    with pytest.raises(DataError) as raised:
        check(Path("x.json"), document)
    assert raised.value.problems[0].fix
    return raised.value.problems[0].what


def test_every_key_of_a_result_has_a_kind(result: dict[str, Any]) -> None:
    assert {*OF_RESULT, "schema"} == result.keys()
    assert OF_RESULT.keys() > set(LATER_KEYS)
    check_result(Path("x.json"), result)


@pytest.mark.parametrize("key", sorted(OF_RESULT))
def test_a_value_that_no_run_writes(result: dict[str, Any], key: str) -> None:
    wrong: list[Any] = [float("nan"), float("inf"), -1, [1], [], {"x": "y"}, 1e300, 10**400]
    wrong += [] if isinstance(result[key], str) or key == "test_time_augmentation" or key == "commit" else ["text"]
    wrong += [None] if key not in NULLABLE else []
    for value in wrong:
        if key == "versions" and isinstance(value, dict):
            continue
        assert refused(check_result, {**result, key: value}).startswith(f"x.json: {key}=")


@pytest.mark.parametrize(
    "target", [{}, {"metric": "top1"}, {"metric": ["top1"], "value": 1}, {"metric": "top1", "value": "1"}]
)
def test_a_target_that_is_none(result: dict[str, Any], target: object) -> None:
    assert "metric top1 or top5" in refused(check_result, {**result, "target": target})


def test_a_reached_target_has_its_times(result: dict[str, Any]) -> None:
    changed = {**result, "reached": True, "seconds_to_target": None}
    assert "seconds_to_target=None of a run that reached" in refused(check_result, changed)
    check_result(Path("x.json"), {**changed, "reached": False})


@pytest.mark.parametrize("key", sorted(OF_PLAN))
@pytest.mark.parametrize("value", [None, "text", [], ["x"], [None], float("nan"), {"a": 1}, [float("nan")], -1])
def test_a_plan_that_no_run_writes(key: str, value: object) -> None:
    check_plan(Path("x.json"), PLAN_JSON)
    assert refused(check_plan, {**PLAN_JSON, key: value}).startswith(f"x.json: {key}=")


def test_stages_that_do_not_fit_the_plan() -> None:
    first, second = PLAN_JSON["stages"]  # type: ignore[misc]
    assert "val_px='x' of stages[1]" in refused(check_plan, {**PLAN_JSON, "stages": [first, {**second, "val_px": "x"}]})
    assert "min_area of stages[1] missing" in refused(check_plan, {**PLAN_JSON, "stages": [first, {"epochs": 1}]})
    many = {**second, "epochs": 10**12}
    assert "px has 3 epochs" in refused(check_plan, {**PLAN_JSON, "stages": [first, many]})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("report/result.json", '{"schema": 1}', "missing"),
        ("report/dawnbench.json", '{"misc": null}', "misc=None"),
        ("report/dawnbench.json", '{"misc": {"seconds_by_part": {"train": "x"}}}', "seconds_by_part="),
        ("config.yaml", "report: null\n", "report=None"),
        ("config.yaml", "report: {cost_per_hour: much}\n", "cost_per_hour='much' of report"),
    ],
)
def test_the_command_names_the_file(
    make_facts: Callable[..., RunFacts], name: str, text: str, said: str, no_pictures: None
) -> None:
    facts = make_facts("run")
    TinyRun(facts).whole()
    (facts.run_dir / name).write_text(text)
    with pytest.raises(DataError) as raised:
        report_runs([facts.run_dir], out=None, json_file=None)
    assert str(facts.run_dir / name) in str(raised.value)
    assert said in str(raised.value)
