"""Every recipe composes, and runs two steps of each stage with its own network and sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fasttrain.cli import main

RECIPES = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_runs_two_steps_of_each_stage(recipe: str, tmp_path: Path) -> None:
    arguments = ["train", f"recipe={recipe}"]
    assert main([*arguments, "data.backend=synthetic", "dry_run=true", f"run_dir={tmp_path / 'plan'}"]) == 0
    stages = json.loads((tmp_path / "plan" / "plan.json").read_text())["stages"]
    arguments += ["data.backend=synthetic", "data.num_train=64", "data.num_val=8", "trainer.steps_per_stage=2"]
    arguments += [
        "trainer.accelerator=cpu",
        "trainer.precision=fp32",
        "trainer.compile=false",
        f"run_dir={tmp_path / 'run'}",
    ]
    arguments += [f"stages.{row}.batch_size=4" for row in range(len(stages))]
    assert main(arguments) == 0
    result = json.loads((tmp_path / "run" / "report" / "result.json").read_text())
    assert result["recipe"] == recipe
    assert result["epochs"] == len(stages)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["px"] == [stage["px"] for stage in stages]
    assert plan["total_steps"] == 2 * len(stages)


def test_the_dawnbench_recipe_has_the_published_steps(tmp_path: Path) -> None:
    assert main(["train", "recipe=resnet50_dawnbench", "dry_run=true", f"run_dir={tmp_path / 'run'}"]) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["source"] == "expected"
    # 27 x ceil(1281167 / 2048) + ceil(1281167 / 1024)
    assert plan["total_steps"] == len(plan["lr"]) == 27 * 626 + 1252
    assert plan["px"] == [96] * 13 + [128] * 11 + [224] * 3 + [288]
    assert max(plan["lr"]) == plan["lr"][5 * 626 - 1] == 2.0
    assert plan["lr"][-1] == 0
