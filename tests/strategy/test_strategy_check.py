"""Rules between the settings of strategy=accelerated_ddp and others."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.config.schema import AcceleratedDDPConfig, RunConfig
from fasttrain.errors import ConfigError
from fasttrain.strategy import session
from fasttrain.strategy.accelerated import AcceleratedDDPStrategy
from fasttrain.strategy.check import check
from fasttrain.strategy.lightning import build_strategy
from fasttrain.strategy.session import CommSession
from fasttrain.strategy.settings import CommSettings, settings_of
from fasttrain.strategy.topology import Topology
from fasttrain.strategy.world import World
from tests.report.conftest import make_config


def config(*, deterministic: bool = False, **changes: Any) -> RunConfig:
    values = {**asdict(CommSettings()), **changes}
    del values["deterministic"]
    strategy = AcceleratedDDPConfig(kind="accelerated_ddp", timeout_s=60, **values)
    return replace(make_config(), strategy=strategy, deterministic=deterministic)


def test_the_defaults_can_be_run() -> None:
    assert check(config()) == []
    assert check(config(deterministic=True)) == []


def test_deterministic_refuses_what_it_would_ignore() -> None:
    (problem,) = check(config(deterministic=True, streams=4, wire_dtype="bf16", hierarchical="true"))
    for words in ("strategy.streams=4", "strategy.wire_dtype=bf16", "strategy.hierarchical=true"):
        assert words in problem.what
    assert check(config(streams=4, wire_dtype="bf16")) == []


def test_a_folder_is_no_file_of_plans(tmp_path: Path) -> None:
    (problem,) = check(config(tune_cache=str(tmp_path)))
    assert f"{tmp_path}/plans.json" in problem.fix


def test_settings_reach_the_strategy() -> None:
    made = build_strategy(config(streams=4, bucket_mb=2.0, deterministic=False), World(0, 0, 2, 2, "self"), "cpu")
    assert isinstance(made, AcceleratedDDPStrategy)
    assert made.settings == CommSettings(streams=4, bucket_mb=2.0)
    assert made.process_group_backend == "gloo"
    assert made._timeout is not None
    assert made._timeout.total_seconds() == 60
    wanted = config(deterministic=True)
    assert isinstance(wanted.strategy, AcceleratedDDPConfig)
    assert settings_of(wanted.strategy, deterministic=True).deterministic


def test_several_nccl_communicators_at_once_are_opt_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.dist, "get_backend", lambda group: "nccl")
    wrapped = type(
        "Wrapped", (), {"device": torch.device("cpu"), "process_group": None, "module": torch.nn.Linear(1, 1)}
    )()

    def make(**settings: Any) -> CommSession:
        topology = Topology(((0, 1),), 0, "", None)
        return CommSession(wrapped, {}, CommSettings(**settings), topology, timeout=timedelta(seconds=1))

    with pytest.raises(ConfigError, match="allow_concurrent_nccl=true"):
        make(streams=2)
    assert make(streams=2, allow_concurrent_nccl=True)._several_streams()
    assert not make(streams=1)._several_streams()
    assert all(plan.streams == 1 for plan in make()._candidates())
