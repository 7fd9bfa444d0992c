"""The config as text: written, read back, compared, printed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import fasttrain
from fasttrain.config.compose import ComposedRun, load_run
from fasttrain.config.flat import config_diff
from fasttrain.config.keys import settings, table_settings
from fasttrain.config.schema import StageConfig
from fasttrain.config.show import config_text, help_text
from fasttrain.errors import ConfigError

Compose = Callable[..., ComposedRun]

ODD = [
    "model.args={a: [1, {b: null}], c: 1e-5, d: 'x: y # z'}",
    "optimizer.lr=1e-05",
    'report.author="Jö: [x] # \\"y\\""',
    "schedule=polynomial",
    "schedule.momentum={high: 0.9, low: 0.8}",
    "report.hardware=007",
]


def test_text_is_read_back_as_it_was(compose: Compose) -> None:
    run = compose(*ODD)
    assert load_run(run.text).config == run.config
    assert load_run(config_text(run)).config == run.config
    assert load_run(run.text).text == run.text


def test_text_has_a_row_of_the_stage_table_a_line(compose: Compose) -> None:
    row = "  - {epochs: 2, px: 32, min_area: 0.35, batch_size: 32, val_px: 64, rectangular_val: false}\n"
    assert row in compose().text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  lr: 0.4", "  lr: x", "optimizer.lr=x: expected a number above 0"),
        ("  lr: 0.4", "  lrr: 0.4", "optimizer.lrr: no such setting"),
        ("px: 32", "px: 3", "stages[0].px=3: expected"),
        ("kind: linear", "kind: lin", "schedule.kind=lin: expected one of linear"),
        ("seed: 1", "seed: [", "run/config.yaml, line"),
        ("recipe: small", "recipe: null", "recipe=null: expected text"),
    ],
)
def test_bad_text_is_refused(compose: Compose, old: str, new: str, said: str) -> None:
    text = compose().text
    assert old in text
    with pytest.raises(ConfigError) as caught:
        load_run(text.replace(old, new), "run/config.yaml")
    assert said in str(caught.value)
    assert "run/config.yaml" in str(caught.value)


def test_text_that_is_no_table() -> None:
    with pytest.raises(ConfigError, match=r"run/config.yaml"):
        load_run("- a\n- b\n", "run/config.yaml")


def test_difference_between_runs(compose: Compose) -> None:
    old = compose().values
    changes = ["optimizer.lr=1", "stages.1.px=96", "schedule=step", "model.args.a=1"]
    assert config_diff(old, old) == []
    assert config_diff(old, compose(*changes).values) == [
        ("model.args", {}, None),
        ("model.args.a", None, 1),
        ("optimizer.lr", 0.4, 1.0),
        ("schedule.drop_at_frac", None, [0.333, 0.667, 0.889]),
        ("schedule.factor", None, 0.1),
        ("schedule.kind", "linear", "step"),
        ("stages[1].px", 64, 96),
    ]


def test_config_text_names_the_source_of_what_is_not_default(compose: Compose, recipe_dir: Path) -> None:
    text = config_text(compose("optimizer.lr=1", "schedule=cosine", "stages.1.px=96"))
    lines = {line.partition(":")[0].strip(): line for line in text.splitlines()}
    assert lines["lr"].endswith("# command line")
    assert lines["schedule"].endswith("# schedule=cosine, chosen by command line")
    assert lines["optimizer"].endswith(f"# optimizer=hybrid, chosen by {recipe_dir}/small.yaml")
    assert lines["stages"].endswith(f"# {recipe_dir}/small.yaml")
    assert re.search(r"px: 96.*# px: command line$", text, re.MULTILINE)
    assert "#" not in lines["rms_lr"]


def test_help_names_everything() -> None:
    text = help_text()
    for setting in settings({}).values():
        above = setting.key.rpartition(".")[0]
        if not (
            setting.is_table or setting.by_option or setting.key in ("stages", "recipe") or above == "schedule.momentum"
        ):
            assert re.search(rf"^  {re.escape(setting.key)}=", text, re.MULTILINE), setting.key
    assert re.search(r"^  schedule\.momentum=null +\{high: 0\.98, low: 0\.90\}", text, re.MULTILINE)
    for setting in table_settings(StageConfig, "stages.N.").values():
        assert setting.key in text
    assert re.search(r"^  stages\.N\.px +a whole number from 8 to 1024 \(pixels\)$", text, re.MULTILINE)
    assert re.search(r"^  optimizer\.lr=0\.5 +\S.*\[number above 0\]$", text, re.MULTILINE)
    assert re.search(r"^  optimizer +hybrid, .*sgd", text, re.MULTILINE)
    assert re.search(r"^  schedule\.power=.*\(only schedule=polynomial\)$", text, re.MULTILINE)
    assert re.search(r"^  resnet50_dawnbench +\S", text, re.MULTILINE)


def test_composing_loads_no_heavy_library() -> None:
    code = (
        "import sys\n"
        "from fasttrain.config.compose import compose_run\n"
        "from fasttrain.config.show import config_text, help_text\n"
        "config_text(compose_run(['recipe=resnet50_dawnbench', 'optimizer.lr=1'])), help_text()\n"
        "print(sorted({'torch', 'torchvision', 'pytorch_lightning', 'timm', 'rich', 'numpy'} & set(sys.modules)))\n"
    )
    root = Path(fasttrain.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "[]\n")


def test_help_needs_no_hydra() -> None:
    code = "import sys; from fasttrain.config.show import help_text; help_text(); print('hydra' in sys.modules)"
    root = Path(fasttrain.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "False\n")


def test_an_older_versions_settings_take_the_values_that_held_before(compose: Compose) -> None:
    run = compose("recipe=quickstart", "optimizer=hybrid")
    values = yaml.safe_load(run.text)
    for group, key in (("data", "cache"), ("data", "num_shards"), ("trainer", "averaging"), ("optimizer", "rms_eps")):
        del values[group][key]
    text = yaml.safe_dump(values)
    with pytest.raises(ConfigError, match=r"data\.cache: not given"):
        load_run(text)
    config = load_run(text, older=True).config
    assert (config.data.cache, config.data.num_shards) == ("off", 1)
    assert config.trainer == run.config.trainer
    assert config.optimizer == run.config.optimizer
