"""A folder of recipes of the tests' own, so that they do not lean on the figures of a shipped one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.config.compose import ComposedRun, compose_run
from fasttrain.errors import ConfigError

RECIPE = """\
# @package _global_
# A recipe of the tests.

defaults:
  - override /data: shapes
  - override /optimizer: hybrid

stages:
  - {epochs: 2, px: 32, min_area: 0.35, batch_size: 32, val_px: 64}
  - {epochs: 1, px: 64, min_area: 0.35, batch_size: 16, val_px: 64}
target: {metric: top1, value: 90}
optimizer: {lr: 0.4}
"""

Compose = Callable[..., ComposedRun]


@pytest.fixture(scope="session")
def recipe_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "small.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


@pytest.fixture
def compose(recipe_dir: Path) -> Compose:
    """``compose("key=value", ...)`` composes recipe=small."""

    def call(*overrides: str) -> ComposedRun:
        return compose_run(["recipe=small", *overrides], recipe_dirs=[recipe_dir])

    return call


@pytest.fixture
def errors(compose: Compose) -> Callable[..., str]:
    """``errors("key=value", ...)`` is what the overrides' error says."""

    def call(*overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            compose(*overrides)
        assert caught.value.exit_code == 2
        return str(caught.value)

    return call
