"""What to say of a key that no setting has: whose it is, which was meant, what there is."""

from __future__ import annotations

import difflib
import re

from fasttrain.config.describe import COMMAND_LINE, any_of, closest, example, fix_line, paste, written_at
from fasttrain.config.keys import Kinds, alternatives, find, owners, settings, shown, table_settings
from fasttrain.config.schema import OPTIONS, RunConfig, StageConfig
from fasttrain.errors import Problem


def unknown_key(key: str, given: str, kinds: Kinds, where: str) -> Problem:
    """The problem of a key that the chosen options do not have.

    Args:
        key: Dotted.
        given: Its value, as text.
        kinds: The run's options, as far as they are known.
        where: ``command line`` or a file; a fix for a file names the key, not an override.
    """
    if re.match(r"stages\.\d", key):
        return _unknown_in_row(key, given, where)
    what = f"{shown(key)}={given}" if where == COMMAND_LINE else shown(key)
    group, _, rest = key.partition(".")
    if where != COMMAND_LINE and rest and find(key, kinds) is not None:
        return Problem(f"{what}: a key with a dot is not read in a file", written_at(key, given, where), where)
    table = _meant_table(key, where)
    if table:
        fix = paste(table, given) if where == COMMAND_LINE else written_at(table, given, where)
        return Problem(f"{what}: no such setting; did you mean {table}?", fix, where)
    belongs = owners(key)
    if belongs:
        return _of_another_option(what, key, given, belongs, kinds, where)
    stage_key = rest if group == "stages" else key
    in_row = table_settings(StageConfig, "stages.0.").get(stage_key)
    if in_row is not None:
        fix = fix_line(in_row, given)
        what = f"{what}: {stage_key} is set for each stage"
        if where != COMMAND_LINE:
            return Problem(what, written_at(in_row.key, given, where), where)
        what = f"{what}; {fix} sets it for the first"
        return Problem(what, fix, where)
    meant = alternatives(key, kinds)
    if not meant:
        return Problem(f"{what}: no such setting; {_what_there_is(group, kinds)}", "take it out", where)
    setting = find(meant[0], kinds)
    assert setting is not None
    value = given or example(setting)
    fix = paste(meant[0], value) if where == COMMAND_LINE else written_at(meant[0], value, where)
    names = any_of([_for_each_stage(name) for name in meant[:4]])
    return Problem(f"{what}: no such setting; did you mean {names}?", fix, where)


def _meant_table(key: str, where: str) -> str | None:
    """The part of a run that a misspelt word without a dot names: an option's group, or a table of a file."""
    if "." in key:
        return None
    tables = [name for name, setting in table_settings(RunConfig, "").items() if setting.is_table]
    names = ["recipe", *tables] if where == COMMAND_LINE else ["defaults", "stages", *tables]
    meant = closest(key, names)
    return meant if meant and difflib.SequenceMatcher(None, key.lower(), meant).ratio() >= 0.8 else None


def _unknown_in_row(key: str, given: str, where: str) -> Problem:
    """The problem of a key that a row of the stage table does not have: ``stages.0.size``."""
    _, row, name = key.split(".", 2)
    known = table_settings(StageConfig, f"stages.{row}.")
    meant = meant_in_row(name)
    hint = f"; did you mean {meant}?" if meant else ""
    what = f"{shown(key)}={given}: a stage has no {name}{hint} (a stage has {', '.join(known)})"
    if meant is None:
        return Problem(what, "leave it out" if where == COMMAND_LINE else f"take it out of {where}", where)
    setting = known[meant]
    fix = fix_line(setting, given) if where == COMMAND_LINE else written_at(setting.key, given, where)
    return Problem(what, fix, where)


def meant_in_row(name: str) -> str | None:
    """The setting of a stage that the part of a key behind the row stands for (``size``, ``px.x``), or None."""
    known = table_settings(StageConfig, "")
    if inside := [part for part in name.split(".") if part in known]:
        return inside[0]
    found = [key.rpartition(".")[2] for key in alternatives(f"stages.0.{name}", {}) if key.startswith("stages.0.")]
    return found[0] if found else None


def _for_each_stage(name: str) -> str:
    return f"{name} (each stage has its own)" if name.startswith("stages.") else name


def _of_another_option(what: str, key: str, given: str, belongs: list[str], kinds: Kinds, where: str) -> Problem:
    group = key.partition(".")[0]
    what = f"{what}: belongs to {group}={any_of(belongs)}; this run has {group}={kinds.get(group)}"
    if where == COMMAND_LINE:
        return Problem(what, f"{group}={belongs[0]} {paste(key, given)}, or leave it out", where)
    fix = "take it out; what belongs to one option is set on the command line, or in an option of your own"
    return Problem(what, fix, where)


def _what_there_is(group: str, kinds: Kinds) -> str:
    if group in OPTIONS or find(group, kinds) is not None:
        below = [s.key for s in settings(kinds).values() if s.key.startswith(f"{group}.") and not s.by_option]
        if below:
            return f"{group} has {', '.join(name.partition('.')[2] for name in below)}"
    return f"there are {', '.join(table_settings(RunConfig, ''))}"
