"""From plain values to the typed ``RunConfig``: every wrong key, type and bound is collected."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, get_args

from fasttrain.config.describe import expected, fix_at, in_bounds
from fasttrain.config.keys import Kinds, Setting, option_classes, shown, stage_kinds, table_settings
from fasttrain.config.schema import OPTIONS, RunConfig
from fasttrain.config.unknown import unknown_key
from fasttrain.config.yaml_text import flow
from fasttrain.errors import Problem

_NOTHING: Any = object()


@dataclass(frozen=True)
class Origins:
    """Where each value came from, and how it was written.

    Attributes:
        sources: By dotted key; a key without an entry has that of the last below it, or of the nearest above.
        given: Values as typed on the command line.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def where(self, key: str) -> str:
        if key not in self.sources and (below := [name for name in self.sources if name.startswith(f"{key}.")]):
            return self.sources[below[-1]]
        while key:
            if key in self.sources:
                return self.sources[key]
            key = key.rpartition(".")[0]
        return self.default

    def text(self, key: str, value: Any) -> str:
        return self.given.get(key) or flow(value)


class Validator:
    """Builds the schema's dataclasses from plain values; what is wrong is added to ``problems``.

    Args:
        origins: Where the values came from.
        loose: Stages whose option is not known (a wrong choice, reported elsewhere): unknown keys pass there.
        reported: Keys whose value is already known to be wrong.
    """

    def __init__(
        self, origins: Origins, loose: Collection[str] = frozenset(), reported: Collection[str] = frozenset()
    ) -> None:
        self._origins = origins
        self._loose = loose
        self._reported = reported
        self._kinds: Kinds = {}
        self.problems: list[Problem] = []

    def run(self, values: Mapping[str, Any]) -> RunConfig | None:
        """The typed run, or None where ``problems`` says why not."""
        self._kinds = stage_kinds(values)
        built = self._table(RunConfig, values, "")
        return built if isinstance(built, RunConfig) and not self.problems else None

    def _table(self, schema: type, values: Mapping[str, Any], prefix: str) -> Any:
        known = table_settings(schema, prefix)
        for name in values:
            if name not in known and prefix.partition(".")[0] not in self._loose:
                self._unknown(f"{prefix}{name}", values[name])
        defaults = {f.name: f.default for f in fields(schema)}
        built = {}
        for name, setting in known.items():
            if name in values:
                built[name] = self.value(setting, values[name])
            elif defaults[name] is not MISSING:
                built[name] = defaults[name]
            else:
                built[name] = self._missing(setting, prefix)
        return _NOTHING if any(value is _NOTHING for value in built.values()) else schema(**built)

    def _unknown(self, key: str, value: Any) -> None:
        given = self._origins.text(key, value)
        self.problems.append(unknown_key(key, given, self._kinds, self._origins.where(key)))

    def _missing(self, setting: Setting, prefix: str) -> Any:
        where = self._origins.where(prefix.rstrip("."))
        what = f"{shown(setting.key)}: not given; expected {expected(setting)}"
        fix = "build on an option: defaults: [NAME, _self_]" if setting.by_option else fix_at(setting, where)
        self.problems.append(Problem(what, fix, where))
        return _NOTHING

    def value(self, setting: Setting, value: Any) -> Any:
        """A value converted to the setting's type, or a marker that it is wrong."""
        if setting.key in self._reported:
            return _NOTHING
        if isinstance(value, str) and value == "???":
            return self._missing(setting, setting.key)
        if value is None and setting.optional:
            return None
        if setting.is_table and isinstance(value, Mapping):
            return self._table(self._class_of(setting), value, f"{setting.key}.")
        if setting.is_free and isinstance(value, Mapping):
            return dict(value)
        if setting.is_list and isinstance(value, list):
            return self._list(setting, value)
        converted = _CONVERT.get(setting.base, _nothing)(setting, value)
        if converted is _NOTHING:
            self._wrong(setting, value)
        return converted

    def _class_of(self, setting: Setting) -> type:
        if setting.key in OPTIONS:
            return option_classes(setting.key, self._kinds.get(setting.key))[0]
        base: type = setting.base
        return base

    def _list(self, setting: Setting, values: list[Any]) -> Any:
        (element,) = get_args(setting.base)
        if element in (int, float):
            built = [_number(Setting("", element, False, setting.metadata), value) for value in values]
            length = setting.metadata.get("length")
            if any(value is _NOTHING for value in built) or (length and len(built) != length):
                self._wrong(setting, values)
                return _NOTHING
            return built
        rows = [
            self.value(Setting(f"{setting.key}.{index}", element, False, {}), row) for index, row in enumerate(values)
        ]
        return _NOTHING if any(row is _NOTHING for row in rows) else rows

    def _wrong(self, setting: Setting, value: Any) -> None:
        given = self._origins.text(setting.key, value)
        what = f"{shown(setting.key)}={given}: expected {expected(setting)}"
        where = self._origins.where(setting.key)
        self.problems.append(Problem(what, fix_at(setting, where, value), where))


def _text(setting: Setting, value: Any) -> Any:
    if value is False and "off" in setting.metadata.get("choices", ()):
        return "off"  # what YAML makes a truth value of, unless it stands in quotes
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, (int, float)):
        value = str(value)
    if not isinstance(value, str) or not value:
        return _NOTHING
    choices = setting.metadata.get("choices")
    return value if choices is None or value in choices else _NOTHING


def _number(setting: Setting, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _NOTHING
    if not in_bounds(value, setting.metadata) or (setting.base is int and value != int(value)):
        return _NOTHING
    return setting.base(value)


def _truth(setting: Setting, value: Any) -> Any:
    return value if isinstance(value, bool) else _NOTHING


def _nothing(setting: Setting, value: Any) -> Any:
    return _NOTHING


_CONVERT: dict[Any, Callable[[Setting, Any], Any]] = {
    str: _text,
    int: _number,
    float: _number,
    bool: _truth,
}
