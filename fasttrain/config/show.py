"""What ``--help`` and ``--cfg job`` print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrain.config.describe import any_of, expected
from fasttrain.config.files import RECIPE, OptionFiles
from fasttrain.config.keys import Setting, find, owners, table_settings
from fasttrain.config.schema import OPTIONS, StageConfig
from fasttrain.config.yaml_text import to_yaml

if TYPE_CHECKING:
    from fasttrain.config.compose import ComposedRun

_USAGE = """\
fasttrain trains an image classifier to a target accuracy in the least time, and proves it.

usage: python train.py recipe=NAME [KEY=VALUE ...]   (or: fasttrain train ..., python -m fasttrain train ...)

  recipe=NAME                          train by a recipe
  recipe=NAME dry_run=true             print the plan (steps, sizes, learning rates), train nothing
  recipe=NAME optimizer.lr=0.7         change one setting
  recipe=NAME optimizer=sgd            choose another option of a stage
  recipe=NAME stages.0.batch_size=64   change one row of the stage table, counted from 0
  recipe=NAME run_dir=DIR resume=auto  continue the run in DIR
  -m recipe=NAME seed=1,2,3            one run for each value, or combination of values
  --cfg job recipe=NAME ...            print every setting and where it comes from
  --config-dir DIR recipe=MY           a recipe of your own, DIR/recipe/MY.yaml

Text with a comma or a quote in it needs quotes twice: 'data.root="/images, new"'. Relative paths count from
the directory that the run is started in.
"""


def help_text(config_dir: Path | None = None) -> str:
    """The text of ``--help``: usage, recipes, options and settings, read from the files and the schema."""
    files = OptionFiles(config_dir)
    groups = [group for group in files.groups if group != RECIPE and len(files.names(group)) > 1]
    lines = [
        _USAGE,
        "recipes (recipe=NAME):",
        *_columns(list(files.recipes())),
        "",
        "options (STAGE=OPTION; a recipe chooses its own):",
        *_columns([(group, ", ".join(files.names(group))) for group in groups]),
        "",
        "rows of the stage table (stages.0.px=96 sets the first row's; stages=[{...}, ...] sets all):",
        *_columns([(s.key, expected(s)) for s in table_settings(StageConfig, "stages.N.").values()]),
        "",
        "settings, with the value that they have where neither the recipe nor you set them:",
        *_setting_lines(files),
    ]
    return "\n".join(lines) + "\n"


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:{width}}  {text}".rstrip() for name, text in rows]


def _setting_lines(files: OptionFiles) -> Iterator[str]:
    """One line a setting: default, meaning (the comment in ``conf/``), what it takes."""
    told: set[str] = set()
    for key, value, comment in _documented(files):
        setting = find(key, {})
        if setting is None or setting.by_option or key in told or key == "stages":
            continue
        told.add(key)
        group = key.partition(".")[0]
        only = owners(key) if owners(key) != _kinds(key) else []
        names = f" (only {group}={any_of(only)})" if only else ""
        yield f"  {f'{key}={value}':44} {comment}{_takes(setting, comment)}{names}"


def _kinds(key: str) -> list[str]:
    return list(OPTIONS.get(key.partition(".")[0], {}))


def _takes(setting: Setting, comment: str) -> str:
    """What a setting takes in brackets, where its comment does not say it."""
    choices = setting.metadata.get("choices", ())
    numeric = setting.base in (int, float) or setting.is_list
    if numeric or any(choice not in comment for choice in choices):
        return f" [{expected(setting, with_unit=not comment).removeprefix('a ')}]"
    return ""


def _documented(files: OptionFiles) -> Iterator[tuple[str, str, str]]:
    """Dotted key, default and comment of each line of ``conf/``, the default option of a group first."""
    primary = files.conf / "config.yaml"
    defaults = dict(re.findall(r"^  - (\w+): (\w+)$", primary.read_text(encoding="utf-8"), re.MULTILINE))
    yield from commented_leaves(primary, "")
    for group, default in defaults.items():
        if group == RECIPE:
            continue
        names = [default, *(name for name in files.names(group) if name != default)]
        for path in (files.conf / group / f"{name}.yaml" for name in names):
            if path.is_file():
                yield from commented_leaves(path, f"{group}.")


def commented_leaves(path: Path, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Dotted key, value and comment of each leaf of one of our own YAML files, from its text."""
    above: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"( *)(\w+):(?: +(.*?))?(?: +# (.*))?", line)
        if not found or found[2] == "defaults":
            continue
        del above[len(found[1]) // 2 :]
        if found[3] is None:
            above.append(found[2])
        else:
            yield prefix + ".".join([*above, found[2]]), found[3], found[4] or ""


def config_text(composed: ComposedRun) -> str:
    """The text of ``--cfg job``: all settings as YAML, with the source of each that is not a default."""
    comments = {key: source for key, source in composed.provenance.items() if not source.startswith("conf/")}
    for group, source in composed.provenance.items():
        if group in composed.choices and group != RECIPE:
            option = f"{group}={composed.choices[group]}"
            comments[group] = f"{option}, chosen by {source}" if not source.startswith("conf/") else ""
    rows: dict[str, list[str]] = {}
    for key, source in comments.items():
        if key.startswith("stages."):
            _, index, leaf = key.split(".")
            rows.setdefault(f"stages.{index}", []).append(f"{leaf}: {source}")
    comments.update({row: ", ".join(parts) for row, parts in rows.items()})
    return to_yaml(composed.values, comments)
