"""Recipes and options in files: a user's own, broken ones, and who set what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fasttrain
from fasttrain.config.compose import compose_run
from fasttrain.config.files import project_folder
from fasttrain.errors import ConfigError

STAGES = "stages: [{epochs: 1, px: 32, min_area: 0.35, batch_size: 4, val_px: 32}]\n"


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def error_of(config_dir: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose_run(overrides, config_dir=config_dir)
    return str(caught.value)


@pytest.mark.parametrize("header", ["# @package _global_\n", ""])
def test_own_recipe_and_option(tmp_path: Path, header: str) -> None:
    choose = "defaults: [override /optimizer: gentle, override /schedule: cosine]\n"
    write(tmp_path, "recipe/base.yaml", f"{header}{choose}{STAGES}seed: 4\n")
    write(tmp_path, "recipe/mine.yaml", f"{header}defaults: [base, _self_]\nseed: 5\n")
    write(tmp_path, "optimizer/gentle.yaml", "defaults: [sgd, _self_]\nlr: 1e-3\n")
    run = compose_run(["recipe=mine", "optimizer.momentum=0.5"], config_dir=tmp_path)
    assert (run.config.recipe, run.config.seed, run.config.optimizer.lr) == ("mine", 5, 0.001)
    assert run.choices["optimizer"] == "gentle"
    expected = {
        "recipe": "command line",
        "seed": f"{tmp_path}/recipe/mine.yaml",
        "stages": f"{tmp_path}/recipe/base.yaml",
        "optimizer": f"{tmp_path}/recipe/base.yaml",
        "optimizer.lr": f"{tmp_path}/optimizer/gentle.yaml",
        "optimizer.nesterov": "conf/optimizer/sgd.yaml",
        "optimizer.momentum": "command line",
        "schedule": f"{tmp_path}/recipe/base.yaml",
        "model": "conf/config.yaml",
    }
    assert {key: run.provenance[key] for key in expected} == expected
    chosen = compose_run(["recipe=mine", "optimizer=sgd", "stages.0.px=64"], config_dir=tmp_path)
    assert chosen.provenance["optimizer"] == chosen.provenance["stages.0.px"] == "command line"


# Text of a recipe, what its error says.
BROKEN = {
    "not YAML": ("a: [\nb: c: d\n", ["mine.yaml, line 2: not valid YAML"]),
    "a list": ("- a\n", ["mine.yaml: not a table of settings"]),
    "misspelt": (
        f"{STAGES}optimizer: {{lrr: 1, lr: abc}}\nfoo: 1\n",
        ["optimizer.lrr: no such setting; did you mean optimizer.lr?", "foo: no such", "optimizer.lr=abc: expected"],
    ),
    "misspelt parts": (
        f"{STAGES}default: [base]\noptimzer: {{lr: 1}}\noptimizer: {{learning_rate: 0.1}}\n",
        [
            "default: no such setting; did you mean defaults?",
            "mine.yaml: defaults: [base]",
            "optimzer: no such setting; did you mean optimizer?",
            "mine.yaml: optimizer: {lr: 1}",
            "optimizer.learning_rate: no such setting; did you mean optimizer.lr?",
            "mine.yaml: optimizer: {lr: 0.1}",
        ],
    ),
    "dots": (f"{STAGES}optimizer.lr: 0.1\n", ["a key with a dot is not read", "mine.yaml: optimizer: {lr: 0.1}"]),
    "wrong values": (
        STAGES.replace("px: 32", "px: 3", 1) + "optimizer: {lr: abc}\n",
        ["mine.yaml: optimizer: {lr: 0.5}", "mine.yaml: px: 96 in row 0 of stages"],
    ),
    "misspelt in a row": (
        STAGES.replace("val_px", "valpx"),
        ["stages[0].valpx=32: a stage has no valpx; did you mean val_px?", "stages[0].val_px: not given"],
    ),
    "one option's key": (f"{STAGES}schedule: {{power: 2}}\n", ["schedule.power: belongs to schedule=polynomial"]),
    "option as a value": ("optimizer: sgd\n", ["does not choose an option", "defaults: [override /optimizer: sgd]"]),
    "option by hand": ("schedule: {kind: step}\n", ["does not choose an option", "override /schedule: step"]),
    "unknown option": (
        "defaults: [override /schedule: cosin]\n",
        ["did you mean cosine?", "mine.yaml: defaults: [override /schedule: cosine]"],
    ),
    "no override": ("defaults: [/schedule: cosine]\n", ["fix: override /schedule: cosine"]),
    "no slash": ("defaults: [override schedule: cosine]\n", ["fix: override /schedule: cosine"]),
    "unknown stage": ("defaults: [override /optimiser: sgd]\n", ["fix: override /optimizer: sgd"]),
    "unknown base": ("defaults: [basis, _self_]\n", ["`- basis` in its defaults list is not known"]),
    "itself": ("defaults: [mine, _self_]\n", ["builds on itself: mine > mine"]),
    "hydra": ("hydra: {run: {dir: x}}\n", ["nothing reads its `hydra` settings"]),
    "wrong place": ("# @package data\nseed: 1\n", ["@package data is not where it is merged"]),
    "wrong types": (f"{STAGES}target: 3\ndata: null\n", ["target=3: expected settings of its own", "data=null"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_recipe_hurts_only_when_it_is_chosen(tmp_path: Path, name: str) -> None:
    text, said = BROKEN[name]
    write(tmp_path, "recipe/mine.yaml", text)
    write(tmp_path, "recipe/good.yaml", STAGES)
    message = error_of(tmp_path, "recipe=mine", "seed=-1")
    for part in [*said, "seed=-1", str(tmp_path / "recipe" / "mine.yaml")]:
        assert part in message
    assert compose_run(["recipe=good"], config_dir=tmp_path).config.seed == 1


def test_names_that_are_taken(tmp_path: Path) -> None:
    write(tmp_path, "recipe/cifar10_basic.yaml", STAGES)
    write(tmp_path, "recipe/mine.yaml", STAGES)
    message = error_of(tmp_path, "recipe=cifar10_basic")
    assert "recipes/cifar10_basic.yaml and" in message
    assert f"rename {tmp_path}/recipe/cifar10_basic.yaml" in message
    assert compose_run(["recipe=mine"], config_dir=tmp_path).config.recipe == "mine"


def test_folder_that_nothing_reads(tmp_path: Path) -> None:
    assert "no such folder" in error_of(tmp_path / "missing", "recipe=cifar10_basic")
    write(tmp_path, "recipes/mine.yaml", STAGES)
    assert "rename it to recipe/" in error_of(tmp_path, "recipe=mine")


def test_folder_one_too_low(tmp_path: Path) -> None:
    write(tmp_path, "recipe/mine.yaml", STAGES)
    message = error_of(tmp_path / "recipe", "recipe=mine")
    assert message.count("config error") == 1
    assert (
        f"one level too low: it is the folder recipe/ itself\n    fix: recipe=mine --config-dir {tmp_path}" in message
    )
    write(tmp_path, "other/mine.yaml", STAGES)
    assert f"fix: move them into {tmp_path}/other/recipe/" in error_of(tmp_path / "other", "recipe=mine")


def test_recipe_by_its_path(tmp_path: Path) -> None:
    write(tmp_path, "recipe/mine.yaml", STAGES)
    message = error_of(tmp_path, f"recipe={tmp_path}/recipe/mine.yaml")
    assert message.endswith("chosen by its name, not by its path\n    fix: recipe=mine")
    with pytest.raises(ConfigError, match=f"fix: recipe=mine --config-dir {tmp_path}$"):
        compose_run([f"recipe={tmp_path}/recipe/mine.yaml"])
    assert "fix: recipe=quickstart" in error_of(tmp_path, f"recipe={project_folder('recipes')}/quickstart.yaml")


def test_option_without_a_kind(tmp_path: Path) -> None:
    write(tmp_path, "recipe/mine.yaml", STAGES)
    write(tmp_path, "schedule/odd.yaml", "warmup_epochs: 1\n")
    message = error_of(tmp_path, "recipe=mine", "schedule=odd")
    assert "schedule.kind: not given" in message
    assert "defaults: [NAME, _self_]" in message


def test_any_working_directory(tmp_path: Path, recipe_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = compose_run(["recipe=small"], recipe_dirs=[recipe_dir])
    assert run.config.data.root == os.path.join(os.path.realpath(tmp_path), "data", "shapes")


@pytest.mark.parametrize("place", ["fasttrain", "."])
def test_folders_of_a_wheel_and_of_a_checkout(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fasttrain").mkdir()
    (tmp_path / place / "conf").mkdir()
    monkeypatch.setattr(fasttrain, "__file__", str(tmp_path / "fasttrain" / "__init__.py"))
    assert project_folder("conf") == (tmp_path / place / "conf").resolve()
    with pytest.raises(ConfigError, match="recipes/ of fasttrain is missing"):
        project_folder("recipes")
