"""From a command line, or the text of an earlier run's config, to a checked ``RunConfig``.

Hydra merges the files (conf/config.yaml, the option of each stage, the recipe). The settings of the command
line are put on top here and everything is checked against the schema, so that all errors come together, in
our words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fasttrain.config.apply import absolute_paths, apply_command_line, resolve_references
from fasttrain.config.describe import COMMAND_LINE
from fasttrain.config.files import RECIPE, OptionFiles
from fasttrain.config.flat import flatten
from fasttrain.config.merge import merge_files
from fasttrain.config.older import filled_in
from fasttrain.config.overrides import read_overrides
from fasttrain.config.schema import RunConfig
from fasttrain.config.selection import Selection, select
from fasttrain.config.validate import Origins, Validator
from fasttrain.config.yaml_text import to_yaml
from fasttrain.errors import ConfigError, Problem


@dataclass(frozen=True)
class ComposedRun:
    """A run whose settings are known to be of the right names, types and ranges.

    Attributes:
        config: The settings; ``optimizer`` and ``schedule`` are of their option's own class.
        provenance: Where each value came from, by dotted key (``command line``, ``recipes/x.yaml``,
            ``conf/optimizer/sgd.yaml``); for the name of a stage (``optimizer``), who chose its option.
        choices: The option of each group, ``recipe`` among them; empty for a run loaded from text.
    """

    config: RunConfig
    provenance: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """All settings as plain types."""
        return asdict(self.config)

    @property
    def text(self) -> str:
        """All settings as YAML, which ``load_run`` reads."""
        return to_yaml(self.values)


def compose_run(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    recipe_dirs: Sequence[Path] = (),
    launch_dir: Path | None = None,
) -> ComposedRun:
    """Composes and checks one run.

    Args:
        overrides: ``KEY=VALUE`` words of the command line, ``recipe=NAME`` among them.
        config_dir: A user's own folder of recipes and options (``--config-dir``).
        recipe_dirs: Further folders of recipes.
        launch_dir: What relative paths count from; the current directory by default.

    Raises:
        ConfigError: With everything that is wrong.
    """
    files = OptionFiles(config_dir, recipe_dirs)
    line = read_overrides(overrides, files)
    selection = select(line.choices, files, COMMAND_LINE)
    problems = [*files.problems, *line.problems, *selection.problems]
    try:
        tree = merge_files(files, selection)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    tree[RECIPE] = selection.choices[RECIPE]
    given, found = apply_command_line(line, tree, selection)
    problems += found
    origins = Origins(selection.sources, given)
    tree, unresolved = resolve_references(tree, origins)
    problems += unresolved.values()
    absolute_paths(tree, launch_dir or Path.cwd())
    validator = Validator(origins, selection.loose, unresolved)
    config = validator.run(tree)
    problems += validator.problems
    if problems or config is None:
        raise ConfigError(problems)
    return ComposedRun(config, _provenance(asdict(config), selection, origins), selection.choices)


def _provenance(values: Mapping[str, Any], selection: Selection, origins: Origins) -> dict[str, str]:
    sources = dict(selection.chosen_by)
    sources.update({key: origins.where(key) for key in flatten(values)})
    sources.update({key: source for key, source in origins.sources.items() if key.startswith("stages.")})
    return sources


def load_run(text: str, source: str = "config.yaml", *, older: bool = False) -> ComposedRun:
    """Reads and checks a run's settings from YAML text (``ComposedRun.text``).

    Args:
        text: YAML; all settings, as none has a default here unless ``older``.
        source: What messages call the text: the path it was read from.
        older: The text may be an older version's; see ``older.filled_in``.

    Raises:
        ConfigError: With everything that is wrong.
    """
    try:
        values: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(Problem(f"{source}{line}: not valid YAML")) from None
    if not isinstance(values, dict):
        raise ConfigError(Problem(f"{source}: not a table of settings"))
    validator = Validator(Origins(default=source))
    config = validator.run(filled_in(values) if older else values)
    if config is None:
        raise ConfigError(validator.problems)
    return ComposedRun(config, dict.fromkeys(flatten(asdict(config)), source))
