"""What a finished run left in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fasttrain.errors import ConfigError, DataError, Problem
from fasttrain.report.history import Row, read_metrics
from fasttrain.report.result import KEYS, SCHEMA

RESULT = "report/result.json"
NEEDED = ("config.yaml", "plan.json", "metrics.csv", RESULT)
PLAN_KEYS = ("stages", "total_steps", "total_epochs", "num_train", "num_val", "num_classes", "lr", "px")


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
        DataError: Files are missing or cannot be read; names every one that is missing.
    """
    if not path.is_dir():
        raise ConfigError(Problem(f"{path}: no such folder; expected the folder of a run"))
    missing = [name for name in NEEDED if not (path / name).is_file()]
    if missing:
        raise DataError(Problem(f"{path}: no finished run: {', '.join(missing)} missing", _fix(path, missing)))
    result = _json(path / RESULT)
    if result.get("schema") != SCHEMA:
        raise DataError(Problem(f"{path / RESULT}: schema {result.get('schema')!r}, this version reads {SCHEMA}"))
    _require(path / RESULT, result, KEYS)
    plan = _json(path / "plan.json")
    _require(path / "plan.json", plan, PLAN_KEYS)
    config_text = (path / "config.yaml").read_text(encoding="utf-8")
    entry = path / "report" / "dawnbench.json"
    return Run(
        path=path,
        result=result,
        rows=read_metrics(path / "metrics.csv"),
        plan=plan,
        config=_yaml(path / "config.yaml", config_text),
        config_text=config_text,
        misc=_json(entry).get("misc", {}) if entry.is_file() else {},
    )


def _fix(path: Path, missing: list[str]) -> str:
    runs = sorted(child for child in path.iterdir() if (child / RESULT).is_file())
    if runs:
        return f"it holds {len(runs)} finished runs: fasttrain report {' '.join(str(run) for run in runs)}"
    if missing == [RESULT]:
        return f"the run has not ended; go on with: python train.py recipe=NAME run_dir={path} resume=auto"
    return "give the folder that training printed as run_dir"


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
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


def _require(path: Path, document: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    lacking = [key for key in keys if key not in document]
    if lacking:
        raise DataError(Problem(f"{path}: {', '.join(lacking)} missing"))
