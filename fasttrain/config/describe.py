"""What a setting takes, in words, and a line to paste that sets it; both from the schema's metadata."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from typing import Any, get_args

from fasttrain.config.keys import Setting, find, table_settings

COMMAND_LINE = "command line"
# Characters that Hydra's grammar, a list or a sweep gives a meaning: text with them is never guessed at.
HAS_MEANING = re.compile(r"""[,'"\[\]{}$\\]""")
_TRUE_WORDS = {"true", "1", "yes", "y", "on", "t"}


def expected(setting: Setting, *, with_unit: bool = True) -> str:
    """What a setting takes: ``a number above 0 (peak learning rate), or null``."""
    text = _kind_of_value(setting)
    unit = setting.metadata.get("unit")
    if unit and with_unit:
        text += f" ({unit})"
    return f"{text}, or null" if setting.optional and setting.base is not Any else text


def _kind_of_value(setting: Setting) -> str:
    metadata = setting.metadata
    if "choices" in metadata:
        choices = metadata["choices"]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if setting.is_table:
        return f"settings of its own ({', '.join(table_settings(setting.base, ''))})"
    if setting.is_free:
        return "names and values in braces"
    if setting.is_list:
        return _list(setting)
    if setting.base is bool:
        return "true or false"
    if setting.base in (int, float):
        return f"a {'whole ' if setting.base is int else ''}number{_bounds(metadata)}"
    return "a path" if metadata.get("path") else "text"


def _list(setting: Setting) -> str:
    (element,) = get_args(setting.base)
    if element not in (int, float):
        return "a list of rows in braces"
    length = setting.metadata.get("length")
    return f"a list of {f'{length} ' if length else ''}numbers{_bounds(setting.metadata)}"


def _bounds(metadata: Any) -> str:
    ge, gt, le, lt = (metadata.get(name) for name in ("ge", "gt", "le", "lt"))
    if ge is not None and le is not None:
        return f" from {ge} to {le}"
    low = f" of at least {ge}" if ge is not None else f" above {gt}" if gt is not None else ""
    high = f" at most {le}" if le is not None else f" below {lt}" if lt is not None else ""
    return f"{low} and{high}" if low and high else low + high


def example(setting: Setting, value: Any = None) -> str:
    """A value that the setting takes, near ``value`` where that is possible, as Hydra's grammar writes it."""
    metadata = setting.metadata
    if "choices" in metadata:
        return closest(str(value), list(metadata["choices"])) or metadata["choices"][0]
    if setting.base is bool and isinstance(value, (str, int, float)):
        return "true" if str(value).lower() in _TRUE_WORDS else "false"
    if setting.base in (int, float) and isinstance(value, str) and fits_number(setting, value):
        return value
    if metadata.get("example"):
        return str(metadata["example"])
    if setting.key == "stages":
        return f"[{example(stage_row())}]"
    if setting.is_table:
        names = table_settings(setting.base, "").items()
        return "{" + ", ".join(f"{n}: {example(s)}" for n, s in names if s.metadata.get("example")) + "}"
    return "false" if setting.base is bool else "null"


def stage_row() -> Setting:
    """The first row of the stage table, as a setting."""
    row = find("stages.0", {})
    assert row is not None
    return row


def fits_number(setting: Setting, text: str) -> bool:
    """Whether a text holds a number that the setting would take without its quotes."""
    try:
        number = float(text)
    except ValueError:
        return False
    return in_bounds(number, setting.metadata) and (setting.base is float or number.is_integer())


def in_bounds(number: float, metadata: Any) -> bool:
    """Whether a number is finite and within a setting's bounds."""
    ge, gt, le, lt = (metadata.get(name) for name in ("ge", "gt", "le", "lt"))
    return (
        abs(number) <= sys.float_info.max
        and (ge is None or number >= ge)
        and (gt is None or number > gt)
        and (le is None or number <= le)
        and (lt is None or number < lt)
    )


def paste(key: str, value: str) -> str:
    """``key=value`` as a shell takes it: in single quotes where it has braces, blanks or the like."""
    return shlex.quote(f"{key}={value}")


def quoted(key: str, value: str) -> str:
    """``key="value"``, which Hydra's grammar takes whatever the value has in it."""
    return '{}="{}"'.format(key, value.replace('"', '\\"'))


def paste_text(key: str, value: str) -> str:
    """``key=value`` to paste for free text, such as a path: quoted for Hydra's grammar and for the shell."""
    return shlex.quote(quoted(key, value) if HAS_MEANING.search(value) else f"{key}={value}")


def fix_line(setting: Setting, value: Any = None) -> str:
    """An override that would be right in the place of one with ``value``."""
    return paste(setting.key, example(setting, value))


def fix_at(setting: Setting, where: str, value: Any = None) -> str:
    """``fix_line``, or for a value that a user's file set the lines of YAML to write there."""
    return written_at(setting.key, example(setting, value), where) if in_a_file(where) else fix_line(setting, value)


def in_a_file(where: str) -> bool:
    """Whether ``where`` is a file that a user mends, not the command line or one of the shipped options."""
    return where not in ("", COMMAND_LINE) and not where.startswith("conf/")


def written_at(key: str, value: str, where: str) -> str:
    """What to write in a file: ``in recipes/x.yaml: optimizer: {lr: 0.5}``."""
    *above, leaf = key.split(".")
    if above == ["stages"]:
        return f"in {where}: {value} as row {leaf} of stages"
    if above[:1] == ["stages"]:
        return f"in {where}: {leaf}: {value} in row {above[1]} of stages"
    return f"in {where}: " + "".join(f"{name}: {{" for name in above) + f"{leaf}: {value}" + "}" * len(above)


def closest(word: str, names: list[str]) -> str | None:
    """The name most like a word (whatever its case), or None where none is near."""
    lower = {name.lower(): name for name in reversed(names)}
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def any_of(names: list[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
