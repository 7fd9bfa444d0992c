"""The files that one run is composed of, in the order in which they are merged, read and checked one by one.

Hydra merges them; what it says about a file that is wrong is not for users, so each is looked at here before.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from fasttrain.config.describe import closest, in_a_file
from fasttrain.config.files import NO_RECIPE, RECIPE, OptionFile, OptionFiles, paste_words
from fasttrain.config.flat import flatten
from fasttrain.config.keys import find
from fasttrain.errors import ConfigError, Problem


@dataclass(frozen=True)
class Layer:
    """One file's own content.

    Attributes:
        node: All of it, for Hydra.
        values: Its settings (without the defaults list), plain.
        parents: Names in its own group, merged before it (after it where they follow ``_self_``).
        selects: Options of other stages that it chooses (``override /optimizer: hybrid``).
    """

    file: OptionFile
    node: DictConfig
    values: dict[str, Any]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    selects: Mapping[str, str] = field(default_factory=dict)


def read_layer(file: OptionFile, files: OptionFiles) -> Layer:
    """Reads a file and its defaults list.

    Raises:
        ConfigError: It is no YAML, no table of settings, or its defaults list has entries without a meaning.
    """
    node = _load(file)
    header = re.search(r"^#\s*@package\s+(\S+)", file.path.read_text(encoding="utf-8"), re.MULTILINE)
    places = {"_global_"} if file.group == RECIPE else {"_group_", file.group}
    if header and header[1] not in places:
        fix = f"# @package {'_global_' if file.group == RECIPE else file.group}"
        raise ConfigError(Problem(f"{file.shown}: @package {header[1]} is not where it is merged", fix))
    values: Any = OmegaConf.to_container(node, resolve=False)
    entries = values.pop("defaults", [])
    if "hydra" in values:
        raise ConfigError(Problem(f"{file.shown}: nothing reads its `hydra` settings", "take them out"))
    if not isinstance(entries, list):
        raise ConfigError(Problem(f"{file.shown}: `defaults` must be a list", "defaults: [NAME, _self_]"))
    reader = _DefaultsReader(file, files)
    for entry in entries:
        reader.take(entry)
    problems = reader.problems + (_options_set(file, values) if file.group == RECIPE else [])
    if problems:
        raise ConfigError(problems)
    return Layer(file, node, values, tuple(reader.before), tuple(reader.after), reader.selects)


def _load(file: OptionFile) -> DictConfig:
    try:
        node = _parse(file.path, file.stamp)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        said = getattr(error, "problem", None) or "not readable"
        what = f"{file.shown}{line}: not valid YAML: {said}"
        raise ConfigError(Problem(what, "mend that line: `key: value`, indented with spaces")) from None
    except (OSError, UnicodeError) as error:
        raise ConfigError(Problem(f"{file.shown}: cannot be read: {error}", "save it as UTF-8 text")) from None
    if not isinstance(node, DictConfig) or not all(isinstance(key, str) for key in node):
        raise ConfigError(Problem(f"{file.shown}: not a table of settings", "write `key: value` lines"))
    return node


@lru_cache(maxsize=256)
def _parse(path: Path, stamp: tuple[int, int]) -> Any:
    """Reads a file once for all jobs of a sweep, again when it has changed; its nodes are never written to."""
    return OmegaConf.load(path)


class _DefaultsReader:
    """Sorts the entries of one file's defaults list."""

    def __init__(self, file: OptionFile, files: OptionFiles) -> None:
        self._file, self._files = file, files
        self._self_seen = False
        self.before: list[str] = []
        self.after: list[str] = []
        self.selects: dict[str, str] = {}
        self.problems: list[Problem] = []

    def take(self, entry: Any) -> None:
        if entry == "_self_":
            self._self_seen = True
        elif isinstance(entry, str) and self._files.get(self._file.group, entry):
            (self.after if self._self_seen else self.before).append(entry)
        elif isinstance(entry, dict) and len(entry) == 1:
            self._take_choice(*next(iter(entry.items())))
        else:
            self._refuse(entry, f"the name of another {self._file.group} file, or _self_")

    def _take_choice(self, key: Any, name: Any) -> None:
        words = str(key).split()
        group = words[-1].lstrip("/") if words else ""
        if self._file.group != RECIPE:
            return self._refuse({key: name}, "only a recipe chooses options of other stages")
        if group not in self._files.groups or group == RECIPE:
            meant = closest(group, [known for known in self._files.groups if known != RECIPE])
            return self._refuse({key: name}, f"override /{meant or 'STAGE'}: {name}")
        if key != f"override /{group}":
            return self._refuse({key: name}, f"override /{group}: {name}")
        problem = check_choice(group, str(name), self._files, self._file.shown)
        if problem:
            self.problems.append(problem)
        else:
            self.selects[group] = str(name)
        return None

    def _refuse(self, entry: Any, fix: str) -> None:
        text = ", ".join(f"{k}: {v}" for k, v in entry.items()) if isinstance(entry, dict) else entry
        self.problems.append(Problem(f"{self._file.shown}: `- {text}` in its defaults list is not known", fix))


def _options_set(file: OptionFile, values: Mapping[str, Any]) -> list[Problem]:
    """The problems of a recipe that writes an option's name where only choosing it has an effect."""
    problems = []
    for key, value in flatten(values).items():
        setting = find(key, {})
        group = key.partition(".")[0]
        if setting is not None and (setting.by_option or (setting.is_table and isinstance(value, str))):
            fix = f"defaults: [override /{group}: {value}]"
            problems.append(Problem(f"{key}: {value} does not choose an option", fix, file.shown))
    return problems


def read_chain(group: str, name: str, files: OptionFiles) -> list[Layer]:
    """An option's or recipe's file with those that it builds on, in the order of merging.

    Raises:
        ConfigError: See ``read_layer``; or the files build on each other in a ring.
    """

    def visit(one: str, above: tuple[str, ...]) -> list[Layer]:
        file = files.get(group, one)
        assert file is not None
        if one in above:
            raise ConfigError(Problem(f"{file.shown}: builds on itself: {' > '.join((*above, one))}"))
        layer = read_layer(file, files)
        before = [found for parent in layer.before for found in visit(parent, (*above, one))]
        after = [found for parent in layer.after for found in visit(parent, (*above, one))]
        return [*before, layer, *after]

    return visit(name, ())


def check_choice(group: str, name: str, files: OptionFiles, where: str) -> Problem | None:
    """What is wrong with choosing an option, or None."""
    if group == RECIPE:
        return _check_recipe(name, files)
    if files.get(group, name):
        return files.clash(group, name)
    names = files.names(group)
    meant = closest(name, names)
    hint = f"; did you mean {meant}?" if meant else ""
    if len(names) == 1:
        fix = f"{group}.KEY=VALUE sets what it has"
        fix = f"model.name={name}" if group == "model" else fix
    elif group == "optimizer" and not meant:
        fix = f"optimizer={names[0]}, or by its class name: optimizer=torch optimizer.name=AdamW"
    else:
        fix = f"{group}={meant or names[0]}"
    if in_a_file(where) and len(names) > 1:
        fix = f"in {where}: defaults: [override /{group}: {meant or names[0]}]"
    return Problem(f"{group}={name}: no such option of {group}{hint} (options: {', '.join(names)})", fix, where)


def _check_recipe(name: str, files: OptionFiles) -> Problem | None:
    if files.get(RECIPE, name):
        return files.clash(RECIPE, name)
    if name.endswith((".yaml", ".yml")) and Path(name).expanduser().is_file():
        return _recipe_by_path(name, files)
    known = dict(files.recipes())
    meant = closest(name.rpartition("/")[2].removesuffix(".yaml"), list(known))
    if name == NO_RECIPE:
        what = "no recipe is chosen"
    else:
        what = f"recipe={name}: no such recipe" + (f"; did you mean {meant}?" if meant else "")
    width = max((len(recipe) for recipe in known), default=0)
    rows = "".join(f"\n    {recipe:{width}}  {about}".rstrip() for recipe, about in known.items())
    own = "own recipes: --config-dir DIR recipe=NAME, with DIR/recipe/NAME.yaml"
    pick = meant or files.first_recipe()
    fix = f"recipe={pick}" if pick else own
    return Problem(f"{what}; recipes:{rows}\n    {own}" if known else f"{what}; there are none", fix)


def _recipe_by_path(name: str, files: OptionFiles) -> Problem:
    """The problem of ``recipe=folder/NAME.yaml``: recipes are chosen by name."""
    path = Path(name).expanduser().resolve()
    what = f"recipe={name}: a recipe is chosen by its name, not by its path"
    known = files.get(RECIPE, path.stem)
    if known and known.path == path:
        return Problem(what, f"recipe={path.stem}")
    choice, folder = f"recipe={path.stem}", path.parent
    if folder.name == RECIPE:
        return Problem(what, paste_words(choice, folder.parent))
    target = shlex.quote(str(folder / RECIPE))
    return Problem(what, f"move it into {target}/, then {paste_words(choice, folder)}")
