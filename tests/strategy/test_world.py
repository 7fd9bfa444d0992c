"""Ranks by the launcher's variables."""

from __future__ import annotations

import pytest

from fasttrain.errors import ConfigError, MachineError
from fasttrain.strategy.world import World, find_world
from tests.report.conftest import make_config


def config(**trainer: int):  # type: ignore[no-untyped-def]
    return make_config(trainer={"devices": 1, "num_nodes": 1, **trainer})


def test_without_a_launcher_the_config_counts() -> None:
    assert find_world(config(devices=2), {}) == World(0, 0, 2, 2, "self")
    assert find_world(config(devices=2), {}).must_launch
    assert not find_world(config(), {}).must_launch


def test_two_machines_of_two_gpus_under_torchrun() -> None:
    variables = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    world = find_world(config(), variables)
    assert world == World(rank=3, local_rank=1, size=4, local_size=2, launcher="torchrun")
    assert world.num_nodes == 2
    assert find_world(config(devices=2, num_nodes=2), variables) == world
    with pytest.raises(ConfigError, match=r"trainer\.devices=2 trainer\.num_nodes=2"):
        find_world(config(devices=4), variables)


def test_two_machines_of_two_tasks_under_slurm() -> None:
    variables = {"SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
    with pytest.raises(MachineError, match="--ntasks-per-node"):
        find_world(config(), variables)
    world = find_world(config(), {**variables, "SLURM_NTASKS_PER_NODE": "2"})
    assert world == World(rank=2, local_rank=0, size=4, local_size=2, launcher="slurm")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "LOCAL_RANK is not"),
        ({"RANK": "abc", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, "RANK=abc"),
        ({"SLURM_NTASKS": "y", "SLURM_PROCID": "0"}, "SLURM_NTASKS=y"),
    ],
)
def test_variables_that_cannot_be_right(variables: dict[str, str], words: str) -> None:
    with pytest.raises(MachineError, match=words):
        find_world(config(), variables)


def test_several_machines_need_a_launcher() -> None:
    with pytest.raises(ConfigError, match=r"torch\.distributed\.run --nnodes 2"):
        find_world(config(num_nodes=2), {})
