"""``-m``: a command line with several values (``a,b``, ``choice()``, ``range()``, ``glob()``), job by job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep

from fasttrain.config.compose import ComposedRun, compose_run
from fasttrain.config.describe import COMMAND_LINE
from fasttrain.config.files import OptionFiles
from fasttrain.config.overrides import parse_override, take_flags, with_words_before
from fasttrain.errors import ConfigError, Problem

# More are a slip (a range without an end in sight), and composing them would take minutes.
MAX_JOBS = 1000
# Every job has a folder of its own, in the sweep's; one for all would be written over.
_NOT_IN_A_SWEEP = {
    "run_dir": "leave run_dir out; each job gets a folder of its own",
    "resume": "leave resume out, or -m: one run is continued at a time",
}


def compose_sweep(
    overrides: Sequence[str], *, config_dir: Path | None = None, recipe_dirs: Sequence[Path] = ()
) -> list[tuple[list[str], ComposedRun]]:
    """Composes and checks every job of a sweep before the first starts.

    Returns:
        Each job's own overrides and its run.

    Raises:
        ConfigError: With everything that is wrong in any job, each thing once.
    """
    runs, problems = [], []
    for job in expand_sweep(overrides, config_dir=config_dir, recipe_dirs=recipe_dirs):
        try:
            runs.append((job, compose_run(job, config_dir=config_dir, recipe_dirs=recipe_dirs)))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return runs


def expand_sweep(
    overrides: Sequence[str], *, config_dir: Path | None = None, recipe_dirs: Sequence[Path] = ()
) -> list[list[str]]:
    """The command lines of a sweep's jobs: all combinations, the last key changing fastest.

    Raises:
        ConfigError: An override cannot be read, has no end of values, or makes no sense for several runs.
    """
    files = OptionFiles(config_dir, recipe_dirs)
    parser = OverridesParser.create()
    parsed: list[Override] = []
    overrides, problems = take_flags(overrides, files)
    for text, before in with_words_before(overrides):
        found = parse_override(parser, text, files, before)
        if isinstance(found, Problem):
            problems.append(found)
            continue
        found.config_loader = _Options(files)  # type: ignore[assignment]  # asked by glob() only
        problems += _check(found, text)
        parsed.append(found)
    jobs = math.prod(_num_values(override) for override in parsed) if not problems else 0
    if jobs > MAX_JOBS:
        problems.append(Problem(f"-m: {jobs} jobs, more than {MAX_JOBS}", "fewer values", COMMAND_LINE))
    if problems:
        raise ConfigError(problems)
    return [list(job) for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]


def _check(override: Override, text: str) -> list[Problem]:
    key = override.key_or_group
    if key in _NOT_IN_A_SWEEP:
        return [Problem(f"{text}: not possible with -m", _NOT_IN_A_SWEEP[key], COMMAND_LINE)]
    if not override.is_sweep_override():
        return []
    if not override.is_discrete_sweep():
        fix = f"{key}=range(START,STOP,STEP) or {key}=A,B"
        return [Problem(f"{text}: between two bounds there is no end of values", fix, COMMAND_LINE)]
    if _num_values(override) == 0:
        return [Problem(f"{text}: no value to run", f"{key}=A,B", COMMAND_LINE)]
    return []


def _num_values(override: Override) -> int:
    """How many values an override runs through; a range's are counted without making them."""
    if not override.is_sweep_override():
        return 1
    value = override.value()
    if not isinstance(value, RangeSweep):
        return len(list(override.sweep_iterator()))
    assert value.start is not None
    assert value.stop is not None
    steps = (value.stop - value.start) / value.step if value.step else 0
    return math.ceil(max(0, min(steps, MAX_JOBS + 1)))


class _Options:
    """What Hydra's ``glob()`` asks its config loader for: the options of a group."""

    def __init__(self, files: OptionFiles) -> None:
        self._files = files

    def get_group_options(self, group_name: str, results_filter: Any = None) -> list[str]:
        return self._files.names(group_name) if group_name in self._files.groups else []
