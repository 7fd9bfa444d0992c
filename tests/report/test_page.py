"""The page of a run opens without a network, escapes what it shows, and draws every kind of run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fasttrain.report.facts import RunFacts
from fasttrain.report.finished_run import load_run
from fasttrain.report.pictures import accuracy_of_runs, learning_rate, time_unit
from fasttrain.trainer.results import EpochResult
from tests.report.conftest import PLAN_JSON, TinyRun, make_results

MakeFacts = Callable[..., RunFacts]

# Attributes by which a browser fetches something.
FETCHING = {"src", "srcset", "href", "xlink:href", "data", "poster", "action", "background"}
HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """A page's tags, what it would fetch, its ids, and the text of its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in FETCHING:
                self.fetched.append(str(value))
            if name == "id":
                self.ids.append(str(value))

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def svgs(text: str) -> list[str]:
    return re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL)


@pytest.fixture
def text(make_facts: MakeFacts) -> str:
    facts = make_facts()
    TinyRun(facts).whole()
    return (facts.run_dir / "report" / "report.html").read_text(encoding="utf-8")


def test_nothing_is_fetched(text: str) -> None:
    page = Page(text)
    assert [value for value in page.fetched if not value.startswith(("#", "data:"))] == []
    assert {"script", "link", "iframe", "img", "object", "embed"}.isdisjoint(page.tags)
    assert re.findall(r"@import|url\((?!#)", text) == []


def test_every_picture_is_inline_whole_and_apart_from_the_others(text: str) -> None:
    page = Page(text)
    assert page.tags.count("figure") == len(svgs(text)) > 0
    for svg in svgs(text):
        ElementTree.fromstring(svg)
    assert len(page.ids) == len(set(page.ids))
    used = [value for value in page.fetched if value.startswith("#")]
    assert {value[1:] for value in used} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)


def test_pictures_have_a_title_axes_with_units_and_the_target(text: str) -> None:
    figures = dict(re.findall(r'<figure[^>]*? id="([^"]+)">(.*?)</figure>', text, flags=re.DOTALL))
    for name, words in {
        "accuracy": ["accuracy, %", "seconds without validation", "target: 80 % top1", "reached after 20.0 seconds"],
        "learning-rate": ["step", "learning rate"],
        "image-size": ["epoch", "side, px", "training", "validation"],
        "images-per-second": ["epoch", "images/s"],
        "train-loss": ["epoch", "training loss"],
        "time": ["seconds of wall time", "train stage 0, 32 px", "validation"],
    }.items():
        (svg,) = svgs(figures[name])
        shown = "\n".join(ElementTree.fromstring(svg).itertext())
        assert re.match(r"<figcaption>[A-Z][\w ]+</figcaption>", figures[name]), name
        assert [word for word in words if word not in shown] == [], name


@pytest.mark.usefixtures("no_pictures")
def test_what_a_user_wrote_is_shown_as_text(make_facts: MakeFacts) -> None:
    facts = make_facts(recipe=HOSTILE)
    machine = replace(facts.machine, command=f"python train.py recipe={HOSTILE}", hardware=f"1 x {HOSTILE}")
    facts = replace(facts, machine=machine, overrides=(f"data.root={HOSTILE}",), notes={HOSTILE: HOSTILE})
    (facts.run_dir / "config.yaml").write_text(f"recipe: {HOSTILE}\n")
    TinyRun(facts).whole()
    text = (facts.run_dir / "report" / "report.html").read_text(encoding="utf-8")
    assert "script" not in Page(text).tags
    assert HOSTILE not in text
    assert "data.root=" + HOSTILE in Page(text).words


def drawn(facts: RunFacts, results: Sequence[EpochResult]) -> str:
    """The page of a run with these epochs, drawn without a word from matplotlib."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        TinyRun(facts, results=results).whole()
    text = (facts.run_dir / "report" / "report.html").read_text(encoding="utf-8")
    assert "could not be drawn" not in text
    return text


def test_a_run_of_one_epoch_is_drawn(make_facts: MakeFacts) -> None:
    assert len(svgs(drawn(make_facts(), make_results()[:1]))) >= 4


def test_a_run_of_one_step_is_drawn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ElementTree.fromstring(learning_rate({**PLAN_JSON, "lr": [0.0]}).svg)


def test_a_run_without_rates_has_no_empty_picture_of_them(make_facts: MakeFacts) -> None:
    text = drawn(make_facts(), [replace(result, rate_images=0, rate_seconds=0.0) for result in make_results()])
    assert 'id="images-per-second"' not in text
    assert 'id="accuracy"' in text
    assert "n/a" in Page(text).words


def test_a_diverged_run_without_top5_is_drawn(make_facts: MakeFacts) -> None:
    results = [replace(result, top5=None, train_loss=float("nan")) for result in make_results()]
    text = drawn(make_facts(num_classes=3), results)
    curves = svgs(text)[0]
    assert "top1" in curves
    assert "top5" not in curves
    assert "nan" in Page(text).words


@pytest.mark.usefixtures("no_pictures")
def test_no_accuracy_on_the_page_is_rounded_up_to_the_target(make_facts: MakeFacts) -> None:
    first, *_ = make_results()
    short = replace(first, top1=92.998, correct1=46_499, correct5=49_999, num_val=50_000)
    facts = replace(make_facts(target={"metric": "top1", "value": 93.0, "stop": False}), num_val=50_000)
    TinyRun(facts, results=[short]).whole()
    text = (facts.run_dir / "report" / "report.html").read_text(encoding="utf-8")
    assert "not reached" in text
    assert "92.99" in Page(text).words
    assert "93.00" not in Page(text).words


@pytest.mark.usefixtures("no_pictures")
def test_runs_in_one_picture_have_their_target_and_one_entry_a_group(make_facts: MakeFacts) -> None:
    runs = []
    for name, seed in (("a", 1), ("b", 2)):
        facts = make_facts(name, seed=seed)
        TinyRun(facts).whole()
        runs.append(load_run(facts.run_dir))
    shown = [text.strip() for text in ElementTree.fromstring(accuracy_of_runs([("A", runs)], "top1").svg).itertext()]
    assert shown.count("A") == 1
    assert shown.count("target: 80 %") == 1


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.5, "seconds"), (158, "seconds"), (1296, "minutes"), (14_400, "hours")]
)
def test_times_are_drawn_in_a_unit_that_reads_well(seconds: float, unit: str) -> None:
    name, scale = time_unit(seconds)
    assert name == unit
    assert seconds / scale < 200
