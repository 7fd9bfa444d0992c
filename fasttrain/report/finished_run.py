"""What a finished run left in its folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fasttrain.errors import ConfigError, DataError, Problem
from fasttrain.report.file_check import check_misc, check_plan, check_report_settings, check_result
from fasttrain.report.history import Row, read_metrics
from fasttrain.report.result import LATER_KEYS, SCHEMA

RESULT = "report/result.json"
NEEDED = ("config.yaml", "plan.json", "metrics.csv", RESULT)


@dataclass(frozen=True)
class Run:
    """One run, read from its folder.

    Attributes:
        path: The folder.
        result: result.json.
        rows: metrics.csv.
        plan: plan.json.
        config: config.yaml; ``config_text`` is it as it stands in the file.
        misc: dawnbench.json's ``misc``: how to run it again and where the time went; empty without it.
    """

    path: Path
    result: Mapping[str, Any]
    rows: list[Row]
    plan: Mapping[str, Any]
    config: Mapping[str, Any]
    config_text: str
    misc: Mapping[str, Any]


def load_run(path: Path) -> Run:
    """Read a run's folder.

    Raises:
        ConfigError: There is no such folder.
        DataError: Files are missing, cannot be read or hold what no run writes; names every one that is missing.
    """
    if not path.is_dir():
        raise ConfigError(Problem(f"{path}: no such folder; expected the folder of a run"))
    missing = [name for name in NEEDED if not (path / name).is_file()]
    if missing:
        raise DataError(_unfinished(path, missing))
    result = dict.fromkeys(LATER_KEYS) | _json(path / RESULT)
    if result.get("schema") != SCHEMA:
        raise DataError(Problem(f"{path / RESULT}: schema {result.get('schema')!r}, this version reads {SCHEMA}"))
    check_result(path / RESULT, result)
    plan = _json(path / "plan.json")
    check_plan(path / "plan.json", plan)
    config_text = _text(path / "config.yaml")
    config = _yaml(path / "config.yaml", config_text)
    check_report_settings(path / "config.yaml", config)
    return Run(
        path=path,
        result=result,
        rows=read_metrics(path / "metrics.csv"),
        plan=plan,
        config=config,
        config_text=config_text,
        misc=_misc(path / "report" / "dawnbench.json"),
    )


def _misc(path: Path) -> dict[str, Any]:
    """``misc`` of a ``dawnbench.json``; empty where there is none."""
    misc = _json(path).get("misc", {}) if path.is_file() else {}
    check_misc(path, misc)
    return misc


def _unfinished(path: Path, missing: list[str]) -> Problem:
    """What a folder is that holds no finished run: several of them, a dry run, one that has not ended."""
    what = f"{path}: no finished run: {', '.join(missing)} missing"
    runs = sorted(child for child in path.iterdir() if (child / RESULT).is_file())
    if runs:
        return Problem(what, f"it holds {len(runs)} finished runs: fasttrain report {shlex.join(map(str, runs))}")
    if not {RESULT, "metrics.csv"}.issuperset(missing):
        return Problem(what, "give the folder that training printed as run_dir")
    config = _yaml(path / "config.yaml", _text(path / "config.yaml"))
    start = f"python train.py recipe={config.get('recipe', 'NAME')} ..."
    if config.get("dry_run") and "metrics.csv" in missing:
        return Problem(
            f"{path}: a dry run: nothing was trained", f"leave it out, or train it: {start} without dry_run=true"
        )
    return Problem(
        f"{path}: the run has not ended: {', '.join(missing)} missing",
        f"leave it out, or go on with it, all its settings as before: {start} run_dir={path} resume=auto",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(Problem(f"{path}: cannot be read: {error}")) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_text(path))
    except ValueError as error:
        raise DataError(Problem(f"{path}: not JSON: {error}")) from error
    if not isinstance(document, dict):
        raise DataError(Problem(f"{path}: expected a JSON object"))
    return document


def _yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DataError(Problem(f"{path}: not YAML: {error}")) from error
    if not isinstance(document, dict):
        raise DataError(Problem(f"{path}: expected settings as key: value"))
    return document
