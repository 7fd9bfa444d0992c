"""Settings on the command line: what is taken, and what is said of what is not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fasttrain.config.compose import ComposedRun, compose_run
from fasttrain.config.describe import paste_text
from fasttrain.config.files import OptionFiles
from fasttrain.config.overrides import read_overrides
from fasttrain.config.schema import HybridConfig, MomentumCycleConfig, PolynomialScheduleConfig
from fasttrain.errors import ConfigError

Compose = Callable[..., ComposedRun]

GRAMMAR = re.compile("mismatched|LexerNoViable|viable alternative|token recognition|extraneous|not in struct|full_key")

# Override, what the message must say, the line to paste.
BAD = [
    ("optimizer.lr=abc", "expected a number above 0 (peak learning rate)", "optimizer.lr=0.5"),
    ("optimizer.lr=-1", "optimizer.lr=-1: expected a number above 0", "optimizer.lr=0.5"),
    ("optimizer.lr=null", "optimizer.lr=null: expected a number above 0", "optimizer.lr=0.5"),
    ("optimizer.lr=nan", "optimizer.lr=nan: expected", "optimizer.lr=0.5"),
    ("optimizer.lr=inf", "optimizer.lr=inf: expected", "optimizer.lr=0.5"),
    ("optimizer.lr=1e400", "optimizer.lr=1e400: expected", "optimizer.lr=0.5"),
    ("optimizer.lr=true", "optimizer.lr=true: expected", "optimizer.lr=0.5"),
    ('optimizer.lr="0.1"', "expected a number", "optimizer.lr=0.1"),
    ("optimizer.lr=", "expected a number", "optimizer.lr=0.5"),
    ("optimizer.lr=(1", "the value cannot be read; expected a number", "optimizer.lr=0.5"),
    ("optimizer.lr=0.1,0.2", "several values", "add -m"),
    ("optimizer.lr", "no value is given; expected a number", "optimizer.lr=0.5"),
    ("--optimizer.lr=1", "settings are written KEY=VALUE", "optimizer.lr=1"),
    ("dry_run", "no value is given; expected true or false", "dry_run=true"),
    ("trainer.devices", "no value is given; expected a whole number", "trainer.devices=1"),
    ("--dry_run", "settings are written KEY=VALUE", "dry_run=true"),
    ("--schedule", "settings are written KEY=VALUE", "schedule=cosine"),
    ("optimizr=sgd", "no such setting; did you mean optimizer?", "optimizer=sgd"),
    ("optimizer.learning_rate=1", "did you mean optimizer.lr?", "optimizer.lr=1"),
    ("seed=-1", "a whole number of at least 0 and below 4294967296", "seed=1"),
    ("trainer.devices=2.5", "a whole number from 1 to 1024 (devices of each node)", "trainer.devices=1"),
    ("trainer.compile=yes", "expected true or false", "trainer.compile=true"),
    ("dry_run=0", "expected true or false", "dry_run=false"),
    ("trainer.precision=fp46", "expected one of fp32, bf16, fp16", "trainer.precision=fp16"),
    ("data.root=", "expected a path, or null", "data.root=/path/to/images"),
    ("data.root=/a,b", "several values", "'data.root=\"/a,b\"'"),
    ("data.root='/a", "the value cannot be read", "'data.root=\"/a\"'"),
    ("data.mean=0.1,0.2,0.3", "a list of 3 numbers from 0 to 1", "'data.mean=[0.1,0.2,0.3]'"),
    ("data.mean=[0.1,0.2]", "a list of 3 numbers", "'data.mean=[0.485,0.456,0.406]'"),
    ("data.mean=[0.1,0.2,x]", "a list of 3 numbers", "'data.mean=[0.485,0.456,0.406]'"),
    ("model.name=???", "model.name: not given", "model.name=resnet50"),
    ("lrr=0.2", "did you mean optimizer.lr?", "optimizer.lr=0.2"),
    ("+lrr=0.2", "no such setting; did you mean optimizer.lr?", "optimizer.lr=0.2"),
    ("++lrr=0.2", "no such setting; did you mean optimizer.lr?", "optimizer.lr=0.2"),
    ("lr=0.1,0.2", "did you mean optimizer.lr?", "optimizer.lr=0.1,0.2"),
    ("optimizer.lrr=0.2", "did you mean optimizer.lr?", "optimizer.lr=0.2"),
    ("optimiser.lr=0.2", "did you mean optimizer.lr?", "optimizer.lr=0.2"),
    ("optimizer.lr.x=3", "did you mean optimizer.lr?", "optimizer.lr=3"),
    ("momentum=0.8", "did you mean optimizer.momentum or model.batchnorm.momentum?", "optimizer.momentum=0.8"),
    ("batch_size=8", "batch_size is set for each stage", "stages.0.batch_size=8"),
    ("epochs=3", "epochs is set for each stage", "stages.0.epochs=3"),
    ("stages.epochs=3", "epochs is set for each stage", "stages.0.epochs=3"),
    ("zzzz=3", "no such setting; there are recipe, stages, target", "take it out"),
    ("data.zzzz=3", "no such setting; data has root, backend", "take it out"),
    ("schedule.power=2", "belongs to schedule=polynomial", "schedule=polynomial schedule.power=2"),
    ("optimizer.kind=sgd", "set by choosing the option", "optimizer=sgd"),
    ("optimizer=adm", "no such option of optimizer (options: hybrid,", "optimizer=torch optimizer.name=AdamW"),
    ("optimizer=hybird", "did you mean hybrid?", "optimizer=hybrid"),
    ("schedule=Cosine", "did you mean cosine?", "schedule=cosine"),
    ("schedule=linear,cosine", "several values", "add -m"),
    ("schedule=[linear,cosine]", "takes one option", "schedule=cosine"),
    ("model=resnet18", "no such option of model", "model.name=resnet18"),
    ("schedule", "no value is given", "schedule=cosine"),
    ("schedule@x=cosine", "options have no `@`", "schedule=cosine"),
    ("small", "settings are written KEY=VALUE", "recipe=small"),
    ("word", "settings are written KEY=VALUE", "optimizer.lr=0.5"),
    ("cifar10_basic", "settings are written KEY=VALUE", "recipe=cifar10_basic"),
    ("=3", "no key before the `=`", "optimizer.lr=0.5"),
    ("~optimizer.clip_norm", "cannot be deleted, only set", "optimizer.clip_norm=null"),
    ("~optimizer", "cannot be deleted", "optimizer=hybrid"),
    ("~model.args.x", "there is no model.args.x to drop", "leave it out"),
    ("hydra.run.dir=x", "nothing reads Hydra's own settings", "run_dir=PATH"),
    ("stages.0.px=abc", "stages[0].px=abc: expected a whole number from 8 to 1024", "stages.0.px=96"),
    ("stages[1].px=4", "stages[1].px=4: expected a whole number", "stages.1.px=96"),
    ("stages[1].pxx=64", "a stage has no pxx; did you mean px?", "stages.1.px=64"),
    ("stages.2.px=64", "stages[2].px=64: the last row of the stage table is stages[1]", "stages.1.px=64"),
    ("+stages[7].rectangular_val=true", "the last row of the stage table is", "stages.1.rectangular_val=true"),
    ("stages.7.pxx=64", "the last row of the stage table is stages[1]", "stages.1.px=64"),
    ("stages.7.foo=64", "is stages[1], and a stage has no foo", "leave it out"),
    ("stages.7=null", "the last row of the stage table is stages[1]", "'stages.1={epochs: 5,"),
    ("stages.7={px: 64}", "stages[7].px=64: the last row of the stage table is stages[1]", "stages.1.px=64"),
    ("stages.-1.px=64", "stages[-1].px=64: rows of the stage table are counted from the first", "stages.1.px=64"),
    ("stages[-2].min_area=0.5", "from the first, stages[0] to stages[1]", "stages.0.min_area=0.5"),
    ("++stages.-9.px=64", "from the first, stages[0] to stages[1]", "stages.0.px=64"),
    ("stages.-1=3", "stages[-1]=3: rows of the stage table", "'stages.1={epochs: 5,"),
    ("stages.-1.px=abc", "rows of the stage table are counted from the first", "stages.1.px=96"),
    ("stages.+1.px=64", "rows of the stage table are written stages[0] to stages[1]", "stages.1.px=64"),
    ("stages.00.px=64", "rows of the stage table are written stages[0] to stages[1]", "stages.0.px=64"),
    ("stages.a.px=64", "rows of the stage table have numbers, stages[0] to stages[1]", "stages.0.px=64"),
    ("stages.0.pxx=1", "a stage has no pxx; did you mean px?", "stages.0.px=96"),
    ("stages.0.px.x=64", "a stage has no px.x; did you mean px?", "stages.0.px=64"),
    ("stages.1.5.px=64", "a stage has no 5.px; did you mean px?", "stages.1.px=64"),
    ("px=abc", "px is set for each stage; stages.0.px=96 sets it for the first", "stages.0.px=96"),
    ("~stages.1", "~stages.1: a row cannot be left out; set the whole table", "'stages=[{epochs: 5,"),
    ("~stages[7]", "~stages[7]: a row cannot be left out; set the whole table", "'stages=[{epochs: 5,"),
    ('dry_run="true"', "expected true or false", "dry_run=true"),
    ("stages.0=64", "stages[0]=64: expected settings of its own", "'stages.0={epochs: 5,"),
    ("stages=64", "expected a list of rows", "'stages=[{epochs: 5,"),
    (
        "stages=[{epochs: 1, min_area: 1, batch_size: 4, val_px: 32}]",
        "stages[0].px: not given; expected a whole number",
        "stages.0.px=96",
    ),
    ("schedule.momentum.high=0.9", "schedule.momentum.low: not given", "schedule.momentum.low=0.90"),
    ("schedule.momentum=3", "settings of its own (high, low), or null", "'schedule.momentum={high: 0.98, low: 0.90}'"),
    ("data.root=${oc.env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE is not set", "export NO_SUCH_VARIABLE="),
    ("data.root=${no.such}", "there is no such setting to refer to", ""),
    ("data.root=${{a", "data.root", ""),
]


@pytest.mark.parametrize(("override", "said", "fix"), BAD, ids=[row[0] for row in BAD])
def test_bad_override_is_named_and_mended(errors: Callable[..., str], override: str, said: str, fix: str) -> None:
    text = errors(override)
    assert text.count("config error") == 1
    assert said in text
    assert f"    fix: {fix}" in text or fix in text.partition("fix:")[2]
    assert not GRAMMAR.search(text)


@pytest.mark.parametrize("override", [row[0] for row in BAD if "stages" in row[0] and "leave" not in row[2]])
def test_the_fix_of_a_row_is_taken(compose: Compose, override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(override)
    fixes = [word for problem in caught.value.problems for word in shlex.split(problem.fix)]
    assert compose(*fixes)


def test_all_errors_come_together(errors: Callable[..., str]) -> None:
    bad = [row for row in BAD if row[0].partition("=")[0] in ("lrr", "seed", "optimizer", "data.mean", "stages[1].px")]
    text = errors("optimizer.lr=-1", *(override for override, _, _ in bad if "[0.1" not in override))
    assert text.count("config error") == 6
    for part in ("optimizer.lr=-1", "lrr=0.2", "seed=-1", "optimizer=hybird", "data.mean=0.1", "stages[1].px=4"):
        assert part in text
    assert "(from command line)" in text


def test_flags_of_other_programs_are_one_problem(compose: Compose) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_run(["--recipe", "quickstart"])
    (problem,) = caught.value.problems
    assert problem.what.startswith("--recipe quickstart: not a setting")
    assert problem.fix == "recipe=quickstart"
    with pytest.raises(ConfigError) as caught:
        compose("--seed", "4", "--debug", "dry_run=true")
    assert [problem.fix for problem in caught.value.problems] == ["seed=4", "debug=true"]


@pytest.mark.parametrize(
    ("value", "line"),
    [("/a/b", "data.root=/a/b"), ("/a b", "'data.root=/a b'"), ("/a,b c", "'data.root=\"/a,b c\"'"), ("/é", None)],
)
def test_paths_are_quoted_so_that_they_paste(compose: Compose, value: str, line: str | None) -> None:
    pasted = paste_text("data.root", value)
    assert line is None or pasted == line
    assert compose(*shlex.split(pasted)).config.data.root == value


def test_blanks_need_quotes(errors: Callable[..., str]) -> None:
    assert "'report.author=Your Team'" in errors("report.author=Your", "Team")
    said = errors("data.root=/my", "own", "images", "here", "seed=2")
    assert "own images here: not a setting" in said
    assert "fix: 'data.root=/my own images here'" in said
    assert said.count("not a setting") == 1
    # A word that is followed by its own value is a slip of another kind.
    assert "seed=2" not in errors("optimizer.lr=1", "two", "words").split("fix:")[1]


# Override, key in the composed values, value there.
GOOD = [
    ("optimizer.lr=1e-3", "optimizer.lr", 0.001),
    ("optimizer.lr=2", "optimizer.lr", 2.0),
    ("optimizer.lr=.5", "optimizer.lr", 0.5),
    ("+optimizer.lr=2", "optimizer.lr", 2.0),
    ("optimizer={lr: 2, momentum: 0.5}", "optimizer.momentum", 0.5),
    ("optimizer.clip_norm=null", "optimizer.clip_norm", None),
    ("seed=5.0", "seed", 5),
    ("trainer.steps_per_stage=1e2", "trainer.steps_per_stage", 100),
    ("data.mean=[0,0.5,1]", "data.mean", [0.0, 0.5, 1.0]),
    ("data.root=/a b", "data.root", "/a b"),
    ("data.root=/a=b", "data.root", "/a=b"),
    ("data.root=/a(1)#2", "data.root", "/a(1)#2"),
    ("data.root=/图像", "data.root", "/图像"),
    ('data.root="/a,b"', "data.root", "/a,b"),
    ("report.author=007", "report.author", "007"),
    ("report.author=true", "report.author", "true"),
    ("model.args.drop_path_rate=0.1", "model.args", {"drop_path_rate": 0.1}),
    ("+model.args.drop_path_rate=0.1", "model.args", {"drop_path_rate": 0.1}),
    ("model.args={a: {b: 1}}", "model.args", {"a": {"b": 1}}),
    ("schedule.end_lr=${optimizer.rms_lr}", "schedule.end_lr", 0.0003),
    ("schedule.momentum=null", "schedule.momentum", None),
]


@pytest.mark.parametrize(("override", "key", "value"), GOOD, ids=[row[0] for row in GOOD])
def test_good_override_is_taken(compose: Compose, override: str, key: str, value: object) -> None:
    found: object = compose(override).values
    for name in key.split("."):
        assert isinstance(found, dict)
        found = found[name]
    assert found == value
    assert type(found) is type(value)


def test_options_have_their_own_class(compose: Compose) -> None:
    config = compose("schedule=polynomial", "schedule.power=3", "schedule.momentum={high: 0.9, low: 0.8}").config
    assert isinstance(config.optimizer, HybridConfig)
    assert isinstance(config.schedule, PolynomialScheduleConfig)
    assert config.schedule.power == 3.0
    assert config.schedule.momentum == MomentumCycleConfig(high=0.9, low=0.8)


def test_rows_of_the_stage_table(compose: Compose) -> None:
    rows = compose("stages.1.px=96", "stages[0]={epochs: 5, batch_size: 8}").config.stages
    assert [(row.epochs, row.px, row.batch_size) for row in rows] == [(5, 32, 8), (1, 96, 16)]
    (row,) = compose("stages=[{epochs: 1, px: 32, min_area: 0.35, batch_size: 4, val_px: 32}]").config.stages
    assert (row.batch_size, row.rectangular_val) == (4, False)


def test_the_last_of_several_counts(compose: Compose) -> None:
    run = compose("optimizer.lr=abc", "optimizer.lr=1", "schedule=step", "schedule=cosine")
    assert (run.config.optimizer.lr, run.config.schedule.kind) == (1.0, "cosine")
    assert compose("model.args.a=1", "~model.args.a").config.model.args == {}


def test_relative_paths_count_from_the_launch_directory(recipe_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    overrides = ["recipe=small", "data.root=./d", "run_dir=../out", "model.init_from=~/x.ckpt", "resume=auto"]
    config = compose_run(overrides, recipe_dirs=[recipe_dir], launch_dir=Path("/start/here")).config
    assert (config.data.root, config.run_dir) == ("/start/here/d", "/start/out")
    assert (config.model.init_from, config.resume) == ("/home/someone/x.ckpt", "auto")
    resumed = compose_run(["recipe=small", "resume=a.ckpt"], recipe_dirs=[recipe_dir], launch_dir=Path("/s"))
    assert resumed.config.resume == "/s/a.ckpt"


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["optimizer.lr", "data.root", "stages.0", "model.args", "recipe", "x", "~stages", ""]),
    st.lists(st.sampled_from([*",=()[]{}:'\"$~\\é", "1", "abc", "int(", "range(", "${", "null", " "]), max_size=6),
)
def test_no_words_bring_the_reader_down(key: str, parts: list[str]) -> None:
    line = read_overrides([f"{key}={''.join(parts)}"], OptionFiles())
    assert not any(GRAMMAR.search(str(problem)) for problem in line.problems)


@pytest.mark.parametrize("overrides", [[], ["recipe=none"], ["recipe=smal", "lrr=1"], ["recipe=small.yaml"]])
def test_without_a_known_recipe_the_recipes_are_listed(recipe_dir: Path, overrides: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_run(overrides, recipe_dirs=[recipe_dir])
    text = str(caught.value)
    assert re.search(r"^    small +A recipe of the tests\.$", text, re.MULTILINE)
    assert "resnet50_dawnbench" in text
    assert "--config-dir DIR" in text
    assert ("did you mean small?" in text) == any("sma" in word for word in overrides)
    assert ("did you mean optimizer.lr?" in text) == ("lrr=1" in overrides)
    assert len(caught.value.problems) == 1 + ("lrr=1" in overrides)
    assert f"fix: recipe={'small' if any('sma' in word for word in overrides) else 'quickstart'}" in text
