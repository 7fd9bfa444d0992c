"""Rows of a record, texts and tables."""

from __future__ import annotations

import json

from fasttrain.bench.figures import Cut, Figure, Outcome, document, lacking, table


def test_a_figure_is_its_median_with_its_spread() -> None:
    figure = Figure("x", "images/s", (3000.0, 1000.0, 2500.0))
    assert figure.row() == {"name": "x", "unit": "images/s", "n": 3, "median": 2500, "min": 1000, "max": 3000}
    assert figure.text() == "2,500 [1,000 .. 3,000]"
    assert Figure("x", "ms", (1.23456,)).text() == "1.235"
    assert Figure("x", "ms", (1.0, 2.0)).median == 1.5


def test_columns_stand_under_their_headers() -> None:
    text = table("title", ["part", "rate"], [["read", "1"], ["headers", "22"]])
    assert text.splitlines() == ["title", "  part     rate", "  read        1", "  headers    22"]


def test_a_document_has_the_keys_of_a_record() -> None:
    outcome = Outcome([Figure("x", "ms", (1.0,))], ["table"], ["a note"], {"96 px": "a verdict"})
    facts = {"command": "c", "commit": None, "hardware": "h", "versions": {"torch": "2"}}
    content = document("step", outcome, recipe="r", overrides=["a=1"], machine=facts, clock="how")
    assert json.loads(json.dumps(content, allow_nan=False)) == {
        "schema": 1,
        "bench": "step",
        "recipe": "r",
        "overrides": ["a=1"],
        "command": "c",
        "commit": None,
        "hardware": "h",
        "versions": {"torch": "2"},
        "clock": "how",
        "figures": [{"name": "x", "unit": "ms", "n": 1, "median": 1.0, "min": 1.0, "max": 1.0}],
        "verdicts": {"96 px": "a verdict"},
        "notes": ["a note"],
    }
    assert outcome.text() == "table\n\n96 px: a verdict\n\nnote: a note"


def test_what_was_cut_short_says_so_first() -> None:
    outcome = Outcome([Figure("x", "ms", (1.0,))], ["table"], ["a note"], cut=Cut("SIGTERM", ("x (1 of 2)", "y")))
    sentence = "cut short, not all was measured (SIGTERM); missing: x (1 of 2); y"
    heading = "CUT SHORT, not all was measured: SIGTERM"
    assert outcome.text() == f"{heading}\n\ntable\n\nnote: {sentence}\nnote: a note"
    content = document("step", outcome, recipe="r", overrides=[], machine={}, clock="how")
    assert content["cut_short"] == {"why": "SIGTERM", "missing": ["x (1 of 2)", "y"]}
    assert content["notes"] == [sentence, "a note"]


def test_what_is_lacking() -> None:
    assert lacking("x", 1, 2) == ["x (1 of 2)"]
    assert lacking("x", 2, 2) == lacking("x", 3, 2) == []
