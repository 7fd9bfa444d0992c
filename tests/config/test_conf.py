"""The files of conf/ and recipes/ against the schema: nothing unread, nothing unset, nothing unexplained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fasttrain.config.compose import compose_run
from fasttrain.config.describe import example
from fasttrain.config.files import RECIPE, OptionFiles, project_folder
from fasttrain.config.flat import flatten
from fasttrain.config.keys import option_classes, settings, table_settings
from fasttrain.config.layers import read_chain
from fasttrain.config.schema import OPTIONS, RunConfig, StageConfig
from fasttrain.config.show import commented_leaves
from fasttrain.config.validate import Origins, Validator

FILES = OptionFiles()
GROUPS = [group for group in FILES.groups if group != RECIPE]
CONF_FILES = sorted(project_folder("conf").rglob("*.yaml"))
RECIPES = FILES.names(RECIPE)


def merged(group: str, name: str) -> dict[str, Any]:
    layers = read_chain(group, name, FILES)
    return OmegaConf.to_container(OmegaConf.merge(*[layer.values for layer in layers]), resolve=False)  # type: ignore[return-value]


@pytest.mark.parametrize("path", CONF_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_leaf_has_a_comment(path: Path) -> None:
    leaves = list(commented_leaves(path, ""))
    keys = flatten(OmegaConf.to_container(OmegaConf.load(path), resolve=False))  # type: ignore[arg-type]
    assert {key for key, _, _ in leaves} == keys.keys() - {"defaults"}
    assert [key for key, _, comment in leaves if not comment and key != "kind"] == []


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in FILES.names(group)])
def test_an_option_sets_what_its_class_has(group: str, name: str) -> None:
    values = merged(group, name)
    kind = values.get("kind")
    known = settings({group: kind})
    inside = {key for key, s in known.items() if key.startswith(f"{group}.") and not s.is_table}
    optional_tables = {key for key, s in known.items() if s.is_table and s.optional}
    unset = {key for key in inside if any(key.startswith(f"{above}.") for above in optional_tables)}
    assert flatten(values, f"{group}.").keys() - optional_tables == inside - unset


def test_every_kind_has_an_option_file_and_a_class() -> None:
    for group in GROUPS:
        kinds = table_settings(option_classes(group, None)[0], "").get("kind")
        if kinds is not None:
            assert set(kinds.metadata["choices"]) <= set(FILES.names(group))
        if group in OPTIONS:
            assert kinds is not None
            assert set(kinds.metadata["choices"]) == OPTIONS[group].keys()


def test_top_level_settings_are_the_schemas() -> None:
    values = OmegaConf.to_container(OmegaConf.load(project_folder("conf") / "config.yaml"), resolve=False)
    assert isinstance(values, dict)
    assert values.keys() - {"defaults"} == table_settings(RunConfig, "").keys() - set(FILES.groups)


def test_every_example_is_valid() -> None:
    kinds = [{group: kind} for group in OPTIONS for kind in OPTIONS[group]]
    all_settings = {key: s for kind in kinds for key, s in settings(kind).items()}
    all_settings |= {s.key: s for s in table_settings(StageConfig, "stages.0.").values()}
    for setting in all_settings.values():
        if setting.is_table or setting.key == "stages":
            continue
        checker = Validator(Origins())
        value = OmegaConf.to_container(OmegaConf.create(f"x: {example(setting)}"))
        assert isinstance(value, dict)
        checker.value(setting, value["x"])
        assert checker.problems == [], setting.key


def one_of_each_choice() -> list[str]:
    """A recipe for each set of optimizer and schedule that recipes choose: others compose as these do."""
    chosen: dict[frozenset[str], str] = {}
    for recipe in RECIPES:
        file = FILES.get(RECIPE, recipe)
        assert file is not None
        choices = re.findall(r"override (/(?:optimizer|schedule): \w+)", file.path.read_text(encoding="utf-8"))
        chosen.setdefault(frozenset(choices), recipe)
    return list(chosen.values())


@pytest.mark.parametrize("recipe", [*one_of_each_choice(), "small"])
def test_every_recipe_composes_with_every_option(recipe: str, recipe_dir: Path) -> None:
    """No key of the recipe's own option stays behind."""
    for group in ("optimizer", "schedule"):
        # Options of one kind have the same keys; each kind has one of its name.
        for name in FILES.names(group) if recipe == "small" else OPTIONS[group]:
            run = compose_run([f"recipe={recipe}", f"{group}={name}"], recipe_dirs=[recipe_dir])
            own = {key for key in settings({group: getattr(run.config, group).kind}) if key.startswith(f"{group}.")}
            assert run.choices[group] == name
            assert {key for key in flatten(run.values) if key.startswith(f"{group}.")} <= own


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_what_it_is(recipe: str) -> None:
    file = FILES.get(RECIPE, recipe)
    assert file is not None
    text = file.path.read_text(encoding="utf-8")
    assert text.startswith("# @package _global_\n")
    assert 20 < len(file.description) <= 120
    assert re.search(r"^stages:", text, re.MULTILINE)
