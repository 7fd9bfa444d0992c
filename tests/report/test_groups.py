"""Runs that differ in their seed only are averaged; what spoils a comparison is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fasttrain.errors import DataError
from fasttrain.report.facts import RunFacts
from fasttrain.report.finished_run import Run, load_run
from fasttrain.report.groups import HEADER, comparison, group_runs, notes, summarize, table
from fasttrain.report.page import run_page
from fasttrain.report.result import LATER_KEYS
from fasttrain.report.student_t import t_quantile
from tests.report.conftest import TinyRun

MakeFacts = Callable[..., RunFacts]

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def make_run(make_facts: MakeFacts) -> Callable[..., Run]:
    """A finished run whose result is changed by hand."""

    def make(name: str, *, lr: float = 0.5, seed: int = 1, **changes: object) -> Run:
        facts = make_facts(name, lr=lr, seed=seed)
        TinyRun(facts).whole()
        run = load_run(facts.run_dir)
        return replace(run, result={**run.result, **changes})

    return make


def test_mean_and_spread_by_hand() -> None:
    summary = summarize([1.0, None, 2.0, 6.0])
    assert summary is not None
    assert (summary.n, summary.mean, summary.median, summary.min, summary.max) == (3, 3.0, 2.0, 1.0, 6.0)
    assert summary.std == pytest.approx(7**0.5)  # squares 4 + 1 + 9 over n - 1 = 2
    assert summary.standard_error == pytest.approx((7 / 3) ** 0.5)
    # Two degrees of freedom: t = 4.303.
    assert summary.half_interval == pytest.approx(4.3027 * (7 / 3) ** 0.5, rel=1e-4)
    many = summarize([0.0, 1.0] * 50)
    assert many is not None
    assert many.half_interval == pytest.approx(1.9842 * 0.5 * (100 / 99) ** 0.5 / 10, rel=1e-4)
    one = summarize([5.0])
    assert one is not None
    assert (one.std, one.half_interval) == (None, None)
    assert summarize([None]) is None


def test_seeds_share_a_row_and_settings_part_them(make_run: Callable[..., Run]) -> None:
    groups = group_runs(
        [
            make_run("a", seed=1, seconds_to_target=20.0),
            make_run("b", seed=2, lr=0.25),
            make_run("c", seed=2, seconds_to_target=22.0),
        ]
    )
    assert [[run.result["seed"] for run in group.runs] for group in groups] == [[1, 2], [2]]
    assert [dict(group.differs) for group in groups] == [{"optimizer.lr": 0.5}, {"optimizer.lr": 0.25}]
    row = dict(zip(HEADER, table(groups)[0], strict=True))
    assert (row["group"], row["n"], row["seeds"], row["reached"]) == ("A", "2", "1,2", "2 of 2")
    assert row["time to target"] == "0:00:21 ± 1.4 s"


def test_the_interval_is_the_targets_accuracy_after_the_last_epoch(make_run: Callable[..., Run]) -> None:
    target = {"metric": "top1", "value": 90.0}
    groups = group_runs(
        [make_run("a", seed=1, top1=90.0, target=target), make_run("b", seed=2, top1=90.2, target=target)]
    )
    row = dict(zip(HEADER, table(groups)[0], strict=True))
    # Mean 90.1, standard error 0.1, one degree of freedom: t = 12.706.
    assert row["95% of the mean"] == "88.82 to 91.37"


def test_the_same_settings_on_other_hardware_are_another_row(make_run: Callable[..., Run]) -> None:
    groups = group_runs([make_run("a"), make_run("b", hardware="8 x NVIDIA H200", num_devices=8)])
    assert [group.differs["hardware"] for group in groups] == ["1 x NVIDIA H200", "8 x NVIDIA H200"]


def test_notes_name_what_spoils_a_comparison(make_run: Callable[..., Run]) -> None:
    missed = {"reached": False, "seconds_to_target": None}
    text = "\n".join(
        notes(
            group_runs(
                [
                    make_run("a", seed=1),
                    make_run("b", seed=2, **missed),
                    make_run("c", seed=2),
                    make_run("d", lr=0.1, commit="fff", target={"metric": "top5", "value": 90.0}),
                ]
            )
        )
    )
    assert "share a seed (1,2,2)" in text
    assert "mean of the runs that reached the target only" in text
    assert "different code: 0123abc, fff" in text
    assert "different targets" in text


def test_the_json_holds_what_the_table_shows(make_run: Callable[..., Run]) -> None:
    document = json.loads(json.dumps(comparison(group_runs([make_run("a"), make_run("b", seed=2)]))))
    (group,) = document["groups"]
    assert (group["n"], group["reached"], group["seeds"]) == (2, 2, [1, 2])
    assert group["figures"]["seconds_to_target"]["mean"] == 20.0
    assert group["figures"]["cost_usd"] is None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("report/result.json", "{", "not JSON"),
        ("report/result.json", "[]", "expected a JSON object"),
        ("report/result.json", '{"schema": 99}', "schema 99"),
        ("report/result.json", '{"schema": 1}', "recipe, command"),
        ("plan.json", "{}", "stages, total_steps"),
        ("metrics.csv", "epoch,step\n1,2\n", "expected the columns epoch,step,seconds"),
        ("config.yaml", "a: [", "not YAML"),
        ("config.yaml", "text", "key: value"),
    ],
)
def test_a_broken_file_is_named(make_facts: MakeFacts, name: str, text: str, says: str) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    (facts.run_dir / name).write_text(text)
    with pytest.raises(DataError) as caught:
        load_run(facts.run_dir)
    assert str(facts.run_dir / name) in str(caught.value)
    assert says in str(caught.value)


def test_a_row_that_is_cut_off_is_named_by_its_line(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    path = facts.run_dir / "metrics.csv"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(DataError, match=r"metrics\.csv, line 4: not a row"):
        load_run(facts.run_dir)


def test_a_folder_of_runs_names_them(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    with pytest.raises(DataError, match=r"it holds 1 finished runs: fasttrain report .*run"):
        load_run(facts.run_dir.parent)


@pytest.mark.parametrize(
    # A printed table of the two-sided 95 % quantiles.
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (6, 2.447), (9, 2.262), (19, 2.093), (39, 2.023), (199, 1.972)],
)
def test_quantiles_of_students_t(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=0.002)


def test_means_are_given_with_their_interval(make_run: Callable[..., Run]) -> None:
    runs = [make_run(f"run{seed}", seed=seed, seconds=float(seed)) for seed in (1, 2, 3)]
    (group,) = group_runs(runs)
    # 4.303 standard deviations of 1 over the root of 3 to each side of 2.
    assert "seconds 2.000 (-0.484 to 4.484; sd 1.000)" in "\n".join(notes([group]))
    summary = group.summary("seconds")
    assert summary is not None
    assert summary.half_interval == pytest.approx(2.4844, abs=1e-3)
    assert "interval" not in "\n".join(notes(group_runs(runs[:1])))


def test_the_raw_weights_stand_beside_the_averaged_ones_where_runs_have_them(make_run: Callable[..., Run]) -> None:
    runs = [make_run("a", seed=1, raw_top1=76.0, raw_top5=94.0), make_run("b", seed=2, raw_top1=78.0, raw_top5=95.0)]
    groups = group_runs(runs)
    assert "top1 of the raw weights 77.000 (" in "\n".join(notes(groups))
    figures = comparison(groups)["groups"][0]["figures"]
    assert (figures["raw_top1"]["mean"], figures["raw_top5"]["mean"]) == (77.0, 94.5)
    without = group_runs([make_run("c"), make_run("d", seed=2)])
    assert "raw weights" not in "\n".join(notes(without))
    assert comparison(without)["groups"][0]["figures"]["raw_top1"] is None


def test_times_of_seconds_have_hundredths(make_run: Callable[..., Run]) -> None:
    runs = [make_run("a", seed=1, seconds_to_target=1.01), make_run("b", seed=2, seconds_to_target=1.03)]
    row = dict(zip(HEADER, table(group_runs(runs))[0], strict=True))
    assert row["time to target"] == "1.02 s ± 0.014 s"


def test_a_result_of_an_older_version_is_read(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    path = facts.run_dir / "report/result.json"
    old = {key: value for key, value in json.loads(path.read_text()).items() if key not in LATER_KEYS}
    path.write_text(json.dumps(old))
    run = load_run(facts.run_dir)
    assert {run.result[key] for key in LATER_KEYS} == {None}
    assert "n/a" in run_page(run)


def test_the_learning_rate_that_different_optimizers_share_is_said(make_run: Callable[..., Run]) -> None:
    def said(*optimizers: dict[str, object]) -> bool:
        runs = [replace(run, config={**run.config, "optimizer": options}) for options in optimizers]
        return "different optimizers, and all of them optimizer.lr=0.5" in "\n".join(notes(group_runs(runs)))

    run = make_run("run")
    assert said({"kind": "sgd", "lr": 0.5}, {"kind": "hybrid", "lr": 0.5})
    assert said({"kind": "torch", "name": "Adam", "lr": 0.5}, {"kind": "torch", "name": "AdamW", "lr": 0.5})
    assert not said({"kind": "sgd", "lr": 0.5}, {"kind": "hybrid", "lr": 0.4})
    assert not said({"kind": "sgd", "lr": 0.5}, {"kind": "sgd", "lr": 0.5, "nesterov": True})
