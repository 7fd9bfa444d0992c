"""Puts the command line's settings on top of the merged files, then settles references and relative paths."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from fasttrain.config.describe import COMMAND_LINE
from fasttrain.config.files import RECIPE
from fasttrain.config.keys import Kinds, Setting, find, settings, shown, stage_kinds
from fasttrain.config.overrides import Assignment, CommandLine
from fasttrain.config.rows import wrong_row
from fasttrain.config.selection import Selection, set_source
from fasttrain.config.unknown import unknown_key
from fasttrain.config.validate import Origins
from fasttrain.errors import Problem


def apply_command_line(
    line: CommandLine, tree: dict[str, Any], selection: Selection
) -> tuple[dict[str, str], list[Problem]]:
    """Sets in ``tree`` what the command line sets, and notes it in ``selection.sources``.

    Returns:
        The values as typed, by key, and what is wrong with the keys.
    """
    kinds: Kinds = {g: None if g in selection.loose else kind for g, kind in stage_kinds(tree).items()}
    given: dict[str, str] = {}
    problems = []
    for one in line.assignments:
        setting = find(one.key, kinds)
        problem = _check_key(one, setting, kinds, tree, selection)
        if problem:
            problems.append(problem)
        elif not (one.value == {} and setting is not None and setting.is_table):
            _put(tree, one.key.split("."), one.value)
            set_source(selection.sources, one.key, COMMAND_LINE)
            given[one.key] = one.given
    for key in line.dropped:
        if not _drop(tree, key.split(".")):
            problems.append(Problem(f"~{key}: there is no {key} to drop", "leave it out", COMMAND_LINE))
    return given, problems


def _check_key(
    one: Assignment, setting: Setting | None, kinds: Kinds, tree: dict[str, Any], selection: Selection
) -> Problem | None:
    rows = tree.get("stages")
    # A recipe without rows says so when they are checked.
    if one.key.startswith("stages.") and isinstance(rows, list) and rows:
        problem = wrong_row(one.key, one.given, len(rows))
        if problem:
            return problem
    if setting is None:
        return unknown_key(one.key, one.given, kinds, COMMAND_LINE)
    if setting.by_option or one.key == RECIPE:
        group = one.key.partition(".")[0]
        what = f"{one.key}={one.given}: set by choosing the option, not by hand"
        return Problem(what, f"{group}={one.given if setting.by_option else 'NAME'}", COMMAND_LINE)
    return None


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    node: Any = tree
    for name in path[:-1]:
        if isinstance(node, list):
            node = node[int(name)]
        else:
            if not isinstance(node.get(name), (dict, list)):
                node[name] = {}
            node = node[name]
    if isinstance(node, list):
        node[int(path[-1])] = value
    else:
        node[path[-1]] = value


def _drop(tree: dict[str, Any], path: list[str]) -> bool:
    node: Any = tree
    for name in path[:-1]:
        node = node.get(name) if isinstance(node, dict) else None
    return isinstance(node, dict) and node.pop(path[-1], Problem) is not Problem


def resolve_references(tree: dict[str, Any], origins: Origins) -> tuple[dict[str, Any], dict[str, Problem]]:
    """Replaces ``${other.key}`` and ``${oc.env:NAME}`` by their values.

    Returns:
        The tree, and for each key whose reference leads nowhere the problem.
    """
    problems: dict[str, Problem] = {}
    tree = _readable(tree, "", origins, problems)

    def plain(node: Any, key: str) -> Any:
        names = list(node) if isinstance(node, DictConfig) else range(len(node))
        prefix = f"{key}." if key else ""
        found = {name: value(node, name, f"{prefix}{name}") for name in names}
        return found if isinstance(node, DictConfig) else list(found.values())

    def value(node: Any, name: Any, key: str) -> Any:
        try:
            below = node[name] if not OmegaConf.is_missing(node, name) else "???"
        except OmegaConfBaseException as error:
            raw = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index]
            problems[key] = _bad_reference(key, origins.text(key, raw), error, origins.where(key))
            return None
        return plain(below, key) if isinstance(below, (DictConfig, ListConfig)) else below

    return plain(OmegaConf.create(tree), ""), problems


def _readable(node: Any, key: str, origins: Origins, problems: dict[str, Problem]) -> Any:
    """The same values without references that OmegaConf cannot even read; each is a problem."""
    if isinstance(node, (dict, list)):
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        prefix = f"{key}." if key else ""
        found = {name: _readable(below, f"{prefix}{name}", origins, problems) for name, below in items}
        return found if isinstance(node, dict) else list(found.values())
    if isinstance(node, str) and "${" in node:
        try:
            OmegaConf.create([node])
        except OmegaConfBaseException as error:
            problems[key] = _bad_reference(key, origins.text(key, node), error, origins.where(key))
            return None
    return node


def _bad_reference(key: str, text: str, error: OmegaConfBaseException, where: str) -> Problem:
    said = str(error)
    variable = re.search(r"Environment variable '(.+)' not found", said)
    if variable:
        what, fix = f"the environment variable {variable[1]} is not set", f"export {variable[1]}=VALUE"
    elif isinstance(error, InterpolationKeyError):
        what, fix = "there is no such setting to refer to", "${optimizer.lr}, say, is another setting's value"
    else:
        what, fix = "the reference cannot be read", "they are written ${other.key} or ${oc.env:VARIABLE}"
    return Problem(f"{shown(key)}={text}: {what}", fix, where)


def absolute_paths(tree: Mapping[str, Any], launch_dir: Path) -> None:
    """Makes a run's relative paths count from where it was started; ``~`` is the home folder."""
    for setting in settings(stage_kinds(tree)).values():
        if not setting.metadata.get("path"):
            continue
        *above, name = setting.key.split(".")
        node: Any = tree
        for part in above:
            node = node.get(part) if isinstance(node, Mapping) else None
        path = node.get(name) if isinstance(node, Mapping) else None
        if isinstance(path, str) and path not in ("", "???") and (setting.key, path) != ("resume", "auto"):
            node[name] = os.path.abspath(launch_dir / os.path.expanduser(path))
