"""Which option each stage of a run has, who chose it, and the files that this makes it of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from fasttrain.config.files import RECIPE, OptionFiles
from fasttrain.config.flat import flatten
from fasttrain.config.layers import Layer, check_choice, read_chain
from fasttrain.errors import ConfigError, Problem

PRIMARY = "conf/config.yaml"


@dataclass
class Selection:
    """The options of a run.

    Attributes:
        choices: Option of each group; the default one where the choice is wrong.
        chosen_by: ``command line``, a recipe's file or ``conf/config.yaml``, for each group.
        layers: Files of the options, then of the recipe, in the order of merging.
        sources: File that set each value, by dotted key.
        loose: Groups whose option is not known because the choice, or the recipe, is wrong.
    """

    choices: dict[str, str]
    chosen_by: dict[str, str]
    layers: list[Layer] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)


def select(chosen: Mapping[str, str], files: OptionFiles, where: str) -> Selection:
    """Settles the option of each stage: the command line's, else the recipe's, else the default.

    Args:
        chosen: Options that the command line chooses.
        files: Where they are.
        where: What to call the command line in messages.
    """
    primary: Any = OmegaConf.to_container(OmegaConf.load(files.conf / "config.yaml"), resolve=False)
    entries = [entry for entry in primary.pop("defaults") if isinstance(entry, dict)]
    defaults = {group: name for entry in entries for group, name in entry.items()}
    selection = Selection(dict(defaults), dict.fromkeys(defaults, PRIMARY))
    _note(selection.sources, primary, "", PRIMARY)

    recipe_layers = _read(RECIPE, chosen.get(RECIPE, defaults[RECIPE]), files, where, selection)
    if recipe_layers:
        selection.choices[RECIPE], selection.chosen_by[RECIPE] = chosen[RECIPE], where
    for layer in recipe_layers:
        selection.choices.update(layer.selects)
        selection.chosen_by.update(dict.fromkeys(layer.selects, layer.file.shown))
    groups = [group for group in defaults if group != RECIPE]
    if not recipe_layers:
        selection.loose.update(group for group in groups if group not in chosen)
    for group in groups:
        name, by = chosen.get(group), where
        if name is None:
            name, by = selection.choices[group], selection.chosen_by[group]
        layers = _read(group, name, files, by, selection)
        if layers:
            selection.choices[group], selection.chosen_by[group] = name, by
        else:
            selection.choices[group] = defaults[group]
            selection.loose.add(group)
        selection.layers += layers
    selection.layers += recipe_layers
    for layer in selection.layers:
        prefix = "" if layer.file.group == RECIPE else f"{layer.file.group}."
        _note(selection.sources, layer.values, prefix, layer.file.shown)
    selection.sources[RECIPE] = selection.chosen_by[RECIPE]
    return selection


def _read(group: str, name: str, files: OptionFiles, where: str, selection: Selection) -> list[Layer]:
    """The files of an option; none, and the problem noted, where it cannot be chosen or read."""
    problem = check_choice(group, name, files, where)
    if problem:
        selection.problems.append(problem)
        return []
    try:
        return read_chain(group, name, files)
    except ConfigError as error:
        selection.problems += error.problems
        return []


def _note(sources: dict[str, str], values: Mapping[str, Any], prefix: str, source: str) -> None:
    for key in flatten(values, prefix):
        set_source(sources, key, source)


def set_source(sources: dict[str, str], key: str, source: str) -> None:
    """Notes who set a key last; what was noted for keys below it no longer holds."""
    for below in [known for known in sources if known.startswith(f"{key}.")]:
        del sources[below]
    sources[key] = source
