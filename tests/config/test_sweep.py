"""``-m``: which jobs a command line makes, and that all are checked before the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain.config.sweep import MAX_JOBS, compose_sweep, expand_sweep
from fasttrain.errors import ConfigError


def test_all_combinations_the_last_key_fastest() -> None:
    jobs = expand_sweep(["recipe=small", "seed=range(1,3)", "optimizer.lr=0.1,1e-3", "schedule=choice(linear,step)"])
    assert jobs[:3] == [
        ["recipe=small", "seed=1", "optimizer.lr=0.1", "schedule=linear"],
        ["recipe=small", "seed=1", "optimizer.lr=0.1", "schedule=step"],
        ["recipe=small", "seed=1", "optimizer.lr=0.001", "schedule=linear"],
    ]
    assert len(jobs) == 8


def test_globs_lists_and_odd_text() -> None:
    assert expand_sweep(["schedule=glob([c*,p*])"]) == [["schedule=cosine"], ["schedule=polynomial"]]
    assert expand_sweep(["data.mean=[0,0,0],[1,1,1]"]) == [["data.mean=[0,0,0]"], ["data.mean=[1,1,1]"]]
    assert expand_sweep(["data.root=~/图=1", "stages[0].px=32,64"])[1] == ['data.root="~/图=1"', "stages.0.px=64"]


def test_jobs_are_composed(recipe_dir: Path) -> None:
    overrides = ["recipe=small", "optimizer=sgd,hybrid", 'data.root="/a,b"', "stages.0.px=32,64"]
    jobs = compose_sweep(overrides, recipe_dirs=[recipe_dir])
    assert [(run.config.optimizer.kind, run.config.stages[0].px) for _, run in jobs] == [
        ("sgd", 32),
        ("sgd", 64),
        ("hybrid", 32),
        ("hybrid", 64),
    ]
    assert {run.config.data.root for _, run in jobs} == {"/a,b"}


def test_every_jobs_errors_come_before_the_first_starts(recipe_dir: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_sweep(["recipe=small", "seed=-1", "optimizer.lr=1,-1,x", "schedule=cosine"], recipe_dirs=[recipe_dir])
    whats = sorted(problem.what.partition(":")[0] for problem in caught.value.problems)
    assert whats == ["optimizer.lr=-1", "optimizer.lr=x", "seed=-1"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run_dir=x", "run_dir=x: not possible with -m"),
        ("resume=auto", "resume=auto: not possible with -m"),
        ("seed=interval(0,1)", "seed=range(START,STOP,STEP)"),
        ("seed=range(3,1)", "no value to run"),
        ("schedule=glob(x*)", "no value to run"),
        ("seed=range(0,1,0)", "no value to run"),
        (f"seed=range(0,{MAX_JOBS + 5})", f"more than {MAX_JOBS}"),
        ("seed=range(0,1e300)", f"more than {MAX_JOBS}"),
        ("lrr=1,2", ""),
        ("optimizer.lr=(", "the value cannot be read"),
    ],
)
def test_what_cannot_be_swept(override: str, said: str, recipe_dir: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_sweep(["recipe=small", override], recipe_dirs=[recipe_dir])
    assert said in str(caught.value)
