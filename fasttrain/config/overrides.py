"""What the command line says: ``KEY=VALUE`` words read with Hydra's grammar, in terms of our settings.

Text that the grammar has no place for but that can only mean itself is taken as it stands:
``data.root=~/images``, ``data.root=/图像``, ``data.root=/a=b``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from fasttrain.config.describe import COMMAND_LINE, HAS_MEANING, example, expected, fix_line, paste, quoted
from fasttrain.config.files import RECIPE, OptionFiles
from fasttrain.config.keys import Setting, find, shown
from fasttrain.config.unknown import unknown_key
from fasttrain.errors import Problem


@dataclass(frozen=True)
class Assignment:
    """One setting given on the command line; ``given`` is the value as typed."""

    key: str
    value: Any
    given: str


@dataclass
class CommandLine:
    """The command line in parts: options, settings, keys of ``model.args`` to drop, and what is wrong."""

    choices: dict[str, str] = field(default_factory=dict)
    assignments: list[Assignment] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_overrides(overrides: Sequence[str], files: OptionFiles) -> CommandLine:
    """Reads overrides for one run (no sweep); the last of several for one key counts."""
    line = CommandLine()
    parser = OverridesParser.create()
    overrides, flags = take_flags(overrides, files)
    line.problems += flags
    for text, before in with_words_before(overrides):
        found = parse_override(parser, text, files, before)
        if isinstance(found, Override) and found.is_sweep_override():
            found = _several_values(found.key_or_group, text.partition("=")[2], files)
        if isinstance(found, Problem):
            line.problems.append(found)
        else:
            _sort_in(found, text, files, line)
    return line


def take_flags(overrides: Sequence[str], files: OptionFiles) -> tuple[list[str], list[Problem]]:
    """Overrides with flags as other programs have them put right, and a problem for each.

    ``--recipe quickstart`` becomes ``recipe=quickstart``: what is wrong with the rest can still be told.
    """
    words: list[str] = []
    problems = []
    rest = iter(range(len(overrides)))
    for index in rest:
        text = overrides[index]
        key = text.lstrip("-")
        setting = find(key, {})
        if key == text or (setting is None and key not in files.groups):
            words.append(text)
            continue
        after = overrides[index + 1] if index + 1 < len(overrides) else None
        if after is None or "=" in after or after.startswith("-"):
            fix = _a_value(key, setting, files)
        else:
            fix, text = paste(key, after), f"{text} {after}"
            words.append(f"{key}={after}")
            next(rest)
        problems.append(Problem(f"{text}: not a setting; settings are written KEY=VALUE", fix, COMMAND_LINE))
    return words, problems


def _a_value(key: str, setting: Setting | None, files: OptionFiles) -> str:
    """``key=VALUE`` with a value that the key takes: true for a switch."""
    if key == RECIPE:
        return f"{RECIPE}={files.first_recipe()}"
    if setting is None or key in files.groups:
        return f"{key}={files.names(key)[0]}"
    return paste(key, "true") if setting.base is bool else fix_line(setting)


def _sort_in(override: Override, text: str, files: OptionFiles, line: CommandLine) -> None:
    key, value, given = override.key_or_group, override.value(), text.partition("=")[2]
    if override.is_delete():
        line.dropped.append(key)
    elif key in files.groups and not isinstance(value, dict):
        line.choices[key] = str(value) if isinstance(value, str) else given
    else:
        line.assignments.extend(_leaves(key, value, given))


def _leaves(key: str, value: Any, given: str) -> Iterator[Assignment]:
    """``optimizer={lr: 1, momentum: 0}`` as one assignment a setting."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(f"{key}.{name}", below, str(below))
    else:
        setting = find(key, {})
        if setting is not None and setting.base is str and isinstance(value, (bool, int, float)):
            value = given  # run_dir=007 means its letters
        yield Assignment(key, value, given)


def with_words_before(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word of the command line with the one before it; what a text without quotes was cut into is one word."""
    before, rest = "", list(overrides)
    while rest:
        text = rest.pop(0)
        if _was_cut(before) and _is_bare(text):
            while rest and _is_bare(rest[0]):
                text = f"{text} {rest.pop(0)}"
        yield text, before
        before = text


def _is_bare(word: str) -> bool:
    """Whether a word is neither a setting nor a flag."""
    return "=" not in word and not word.startswith("-")


def _was_cut(word: str) -> bool:
    """Whether bare words behind this one may belong to its value."""
    setting = find(word.partition("=")[0], {})
    return "=" in word and setting is not None and setting.is_free_text and setting.key != RECIPE


def parse_override(parser: OverridesParser, text: str, files: OptionFiles, before: str = "") -> Override | Problem:
    """One word of the command line (``before``: the one before it), or what is wrong with it."""
    found = _parse(parser, text, files, before)
    if isinstance(found, Problem):
        return found
    return _check_form(found, text, files) or found


def _parse(parser: OverridesParser, text: str, files: OptionFiles, before: str) -> Override | Problem:
    text = re.sub(r"^([~+]{0,2}stages)\[([-+]?\d+)\](?=[.=]|$)", r"\1.\2", text)
    # The grammar has no place for these in a key; which row was meant is said where the table is known.
    odd = re.match(r"(\+{0,2})(stages\.(?:[-+]\d+|0\d+))(?=[.=])", text)
    try:
        if not odd:
            return parser.parse_override(text)
        override = parser.parse_override(f"{odd[1]}stages.0{text[odd.end() :]}")
        override.key_or_group = override.key_or_group.replace("stages.0", odd[2], 1)
        return override
    except HydraException:
        pass
    key, equals, value = text.partition("=")
    name = key.lstrip("+")
    if not equals or not re.fullmatch(r"~?[A-Za-z_]\w*([./]\w+)*", name):
        return _no_setting(text, files, before)
    setting = _text_setting(name, files)
    if setting is not None and not HAS_MEANING.search(value):
        return parser.parse_override(quoted(key, value))
    return _unreadable(name, value)


def _text_setting(key: str, files: OptionFiles) -> Setting | None:
    """The setting of free text that a key names (a choice of an option counts as one), or None."""
    if key in files.groups:
        return Setting(key, str, False, {})
    setting = find(key, {})
    return setting if setting is not None and setting.is_free_text else None


def _no_setting(text: str, files: OptionFiles, before: str) -> Problem:
    key, equals, value = text.partition("=")
    bare = key.lstrip("-+")
    setting = find(bare, {})
    what = f"{text}: not a setting; settings are written KEY=VALUE"
    if bare != key and (setting or bare in files.groups) and equals:
        return Problem(what, paste(bare, value), COMMAND_LINE)
    if text.startswith("-"):
        return Problem(what, "--help lists what there is", COMMAND_LINE)
    if not equals and files.get(RECIPE, text):
        return Problem(what, f"recipe={text}", COMMAND_LINE)
    if not equals and bare in files.groups:
        return Problem(f"{text}: no value is given", _a_value(bare, setting, files), COMMAND_LINE)
    if setting:
        fix = _a_value(bare, setting, files)
        return Problem(f"{text}: no value is given; expected {expected(setting)}", fix, COMMAND_LINE)
    if not equals and _was_cut(before):
        return Problem(f"{what}; a value with blanks needs quotes", shlex.quote(f"{before} {text}"), COMMAND_LINE)
    return Problem(what, "optimizer.lr=0.5, say; without blanks around `=`", COMMAND_LINE)


def _unreadable(key: str, value: str) -> Problem:
    setting = find(key, {})
    if setting is None:
        return unknown_key(key, value, {}, COMMAND_LINE)
    what = f"{shown(key)}={value}: the value cannot be read; expected {expected(setting)}"
    if setting.is_free_text:
        return Problem(what, f"put text in quotes: {_in_quotes(key, value)}", COMMAND_LINE)
    return Problem(what, fix_line(setting), COMMAND_LINE)


def _in_quotes(key: str, value: str) -> str:
    return shlex.quote(quoted(key, value.strip("'\"")))


def _check_form(override: Override, text: str, files: OptionFiles) -> Problem | None:
    """What is wrong with an override that can be read, before its value is looked at; or None."""
    key = override.key_or_group
    if not key:
        return Problem(f"{text}: no key before the `=`", "optimizer.lr=0.5, say", COMMAND_LINE)
    if re.match(r"hydra($|[./])", key):
        fix = "leave it out (run_dir=PATH names the folder of a run)"
        return Problem(f"{text}: nothing reads Hydra's own settings here", fix, COMMAND_LINE)
    if override.package is not None:
        return Problem(f"{text}: options have no `@` here", paste(key, text.partition("=")[2]), COMMAND_LINE)
    if override.is_delete():
        return _check_deletion(key, text, files)
    if key in files.groups and not override.is_sweep_override() and isinstance(override.value(), list):
        return Problem(f"{text}: {key} takes one option", f"{key}={files.names(key)[0]}", COMMAND_LINE)
    return None


def _check_deletion(key: str, text: str, files: OptionFiles) -> Problem | None:
    setting = find(key, {})
    if setting is not None and setting.base is Any:
        return None
    what = f"{text}: a setting cannot be deleted"
    if key in files.groups:
        return Problem(what, f"choose another option: {key}={files.names(key)[0]}", COMMAND_LINE)
    if setting is None:
        return Problem(what, "leave it out", COMMAND_LINE)
    if setting.key.startswith("stages.") and setting.is_table:
        table = find("stages", {})
        assert table is not None
        return Problem(f"{text}: a row cannot be left out; set the whole table", fix_line(table), COMMAND_LINE)
    fix = paste(key, "null") if setting.optional else fix_line(setting)
    return Problem(f"{what}, only set", fix, COMMAND_LINE)


def _several_values(key: str, value: str, files: OptionFiles) -> Problem:
    setting = find(key, {})
    if setting is None and key not in files.groups:
        return unknown_key(key, value, {}, COMMAND_LINE)
    what = f"{shown(key)}={value}: several values"
    if setting is not None and setting.is_list and setting.key != "stages":
        return Problem(f"{what}; expected {expected(setting)}", paste(key, f"[{value}]"), COMMAND_LINE)
    if setting is not None and setting.is_free_text:
        fix = f"put text with a comma in quotes: {_in_quotes(key, value)}; or -m for one run each"
        return Problem(what, fix, COMMAND_LINE)
    one = files.names(key)[0] if setting is None or key in files.groups else example(setting)
    return Problem(what, f"add -m to run one job each, or give one: {paste(key, one)}", COMMAND_LINE)
