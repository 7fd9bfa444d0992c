"""report.html opens offline, and several runs are compared in one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fasttrain.errors import ConfigError, DataError
from fasttrain.report.compare import report_runs
from fasttrain.report.facts import RunFacts
from tests.report.conftest import TinyRun

MakeFacts = Callable[..., RunFacts]


class Links(HTMLParser):
    """Collects what a page would fetch, its tags, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.external: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith(("data:", "#")):
                self.external.append(value)


def read(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def test_the_page_opens_offline_and_has_every_picture(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    page = facts.run_dir / "report" / "report.html"
    links = read(page)
    assert links.external == []
    assert "script" not in links.tags
    assert "link" not in links.tags
    text = page.read_text(encoding="utf-8")
    assert links.tags.count("figure") == 5
    assert links.tags.count("svg") == 5
    for words in ("time to 80.00% top1", "N=50", "0123abc", "python train.py recipe=tiny", "1 x NVIDIA H200"):
        assert words in text, words
    assert "&lt;An Author&gt;" in text
    assert "<An Author>" not in text


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_short_run_has_a_page_too(make_facts: MakeFacts, epochs: int) -> None:
    facts = make_facts()
    run = TinyRun(facts)
    run.start()
    for index in range(epochs):
        run.epoch(index)
    run.report.finish()
    assert read(facts.run_dir / "report" / "report.html").external == []


def test_runs_that_differ_in_seed_are_one_row(make_facts: MakeFacts, tmp_path: Path) -> None:
    names = []
    for name, seed, lr in (("a", 1, 0.5), ("b", 2, 0.5), ("c", 1, 0.25)):
        facts = make_facts(name, lr=lr, seed=seed)
        TinyRun(facts).whole()
        names.append(facts.run_dir)
    text = report_runs(names, out=tmp_path / "page.html", json_file=tmp_path / "figures.json")
    assert "optimizer.lr" in text
    assert "0.25" in text
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert sorted(group["n"] for group in figures["groups"]) == [1, 2]
    assert read(tmp_path / "page.html").external == []


def test_one_run_is_written_anew(make_facts: MakeFacts) -> None:
    facts = make_facts()
    TinyRun(facts).whole()
    page = facts.run_dir / "report" / "report.html"
    page.unlink()
    text = report_runs([facts.run_dir], out=None, json_file=None)
    assert text.startswith("time to 80.00% top1: 0:00:20")
    assert page.is_file()


def test_folders_of_no_finished_run_are_named_together(make_facts: MakeFacts, tmp_path: Path) -> None:
    unfinished = make_facts("unfinished").run_dir
    with pytest.raises((ConfigError, DataError)) as caught:
        report_runs([tmp_path / "absent", unfinished], out=None, json_file=None)
    text = str(caught.value)
    assert str(tmp_path / "absent") in text
    assert "result.json" in text
