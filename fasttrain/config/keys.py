"""Every setting of a run by its dotted key: type, bounds, unit; and which key a wrong one stands for."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from fasttrain.config.schema import OPTIONS, RunConfig, StageConfig

# Which option each stage of the run has, as in its `kind`; None where that is not known (a wrong choice).
Kinds = Mapping[str, str | None]

STAGE_ROW = "stages."

# What other programs call a setting; the last part of its key here.
OTHER_NAMES = {
    "learning_rate": "lr",
    "max_lr": "lr",
    "wd": "weight_decay",
    "bs": "batch_size",
    "batchsize": "batch_size",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "image_size": "px",
    "img_size": "px",
    "num_workers": "workers",
    "gpus": "devices",
    "num_gpus": "devices",
    "smoothing": "label_smoothing",
}


@dataclass(frozen=True)
class Setting:
    """One place of the schema.

    Attributes:
        key: Dotted, a row of the stage table by its number: ``stages.0.px``.
        base: Its type without None: bool, int, float, str, list[...], dict[...] or a dataclass.
        optional: Whether null is a value.
        metadata: Bounds, choices, unit, example (see ``schema.py``).
    """

    key: str
    base: Any
    optional: bool
    metadata: Mapping[str, Any]

    @property
    def is_table(self) -> bool:
        """Whether it has settings of its own below it."""
        return is_dataclass(self.base)

    @property
    def is_free(self) -> bool:
        """Whether any key may be below it (``model.args``)."""
        return self.base is dict or get_origin(self.base) is dict

    @property
    def is_list(self) -> bool:
        return get_origin(self.base) is list

    @property
    def is_free_text(self) -> bool:
        return self.base is str and "choices" not in self.metadata

    @property
    def by_option(self) -> bool:
        return bool(self.metadata.get("set_by_option"))


def shown(key: str) -> str:
    """A key as messages write it: ``stages.1.px`` as ``stages[1].px``."""
    return re.sub(r"^stages\.([-+]?\d+)", r"stages[\1]", key)


@cache
def table_settings(schema: type, prefix: str) -> dict[str, Setting]:
    """The settings one level below a dataclass, by the name of the field."""
    hints = get_type_hints(schema)
    return {f.name: Setting(f"{prefix}{f.name}", *_without_none(hints[f.name]), f.metadata) for f in fields(schema)}


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    (base,) = [arg for arg in get_args(hint) if arg is not type(None)]
    return base, True


def option_classes(group: str, kind: str | None) -> list[type]:
    """The classes that may describe a stage: one, or all of its options where the option is not known."""
    known = OPTIONS.get(group)
    if not known:
        return [table_settings(RunConfig, "")[group].base]
    if kind in known:
        return [known[kind]]
    return list(dict.fromkeys(known.values()))


@cache
def _settings(frozen_kinds: tuple[tuple[str, str | None], ...]) -> dict[str, Setting]:
    kinds = dict(frozen_kinds)
    found: dict[str, Setting] = {}

    def add(setting: Setting, classes: list[type]) -> None:
        found.setdefault(setting.key, setting)
        for schema in classes:
            for below in table_settings(schema, f"{setting.key}.").values():
                add(below, [below.base] if below.is_table else [])

    for name, setting in table_settings(RunConfig, "").items():
        add(setting, option_classes(name, kinds.get(name)) if setting.is_table else [])
    return found


def stage_kinds(values: Mapping[str, Any]) -> dict[str, str | None]:
    """The option of each stage in a run's plain values, as their ``kind`` says."""
    stages = {name: values.get(name) for name, s in table_settings(RunConfig, "").items() if s.is_table}
    return {
        name: stage["kind"]
        for name, stage in stages.items()
        if isinstance(stage, Mapping) and isinstance(stage.get("kind"), str)
    }


def settings(kinds: Kinds) -> dict[str, Setting]:
    """All settings of a run with these options, in order, without the rows of the stage table."""
    return _settings(tuple(sorted(kinds.items())))


def find(key: str, kinds: Kinds) -> Setting | None:
    """The setting that a dotted key names, or None."""
    known = settings(kinds)
    if key in known:
        return known[key]
    row = re.fullmatch(r"stages\.(\d+)(?:\.(\w+))?", key)
    if row:
        place = f"{STAGE_ROW}{row[1]}"
        if row[2] is None:
            return Setting(place, StageConfig, False, {})
        return table_settings(StageConfig, f"{place}.").get(row[2])
    parts = key.split(".")
    for end in range(len(parts) - 1, 0, -1):
        above = known.get(".".join(parts[:end]))
        if above and above.is_free:
            return Setting(key, Any, True, {})
    return None


def owners(key: str) -> list[str]:
    """The options whose stage would have this key: ``schedule.power`` → ``["polynomial"]``."""
    group, _, rest = key.partition(".")
    return [kind for kind in OPTIONS.get(group, {}) if rest and key in settings({group: kind})]


def alternatives(key: str, kinds: Kinds) -> list[str]:
    """The keys that a wrong one may stand for, best first; rows of the stage table as ``stages.0.px``."""
    free = [s.key for s in settings(kinds).values() if not (s.is_table or s.by_option)]
    free.sort(key=lambda name: name.count("."))
    above = [name for name in free if key.startswith(f"{name}.") and name != "stages"]
    if above:
        return above
    keys = free + [s.key for s in table_settings(StageConfig, f"{STAGE_ROW}0.").values()]
    group, leaf = key.partition(".")[0], OTHER_NAMES.get(_leaf(key), _leaf(key))
    in_group = [name for name in keys if "." in key and name.startswith(f"{group}.")]
    same_leaf = [name for name in keys if _leaf(name) == leaf]
    return (
        [name for name in same_leaf if name in in_group]
        or same_leaf
        or _like(leaf, in_group, 0.6)
        or difflib.get_close_matches(key, keys, n=1, cutoff=0.85)
        or _like(leaf, keys, 0.7)
    )


def _like(leaf: str, keys: list[str], cutoff: float) -> list[str]:
    """The keys whose last part is most like ``leaf``."""
    close = difflib.get_close_matches(leaf, dict.fromkeys(map(_leaf, keys)), n=1, cutoff=cutoff)
    return [key for key in keys if _leaf(key) in close]


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]
