"""Every recipe composes, and runs two steps of each stage with its own network and sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fasttrain.cli import main
from fasttrain.config.compose import compose_run
from fasttrain.schedule.schedule import build_schedule
from fasttrain.stages import build_plan

RECIPES = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


# The network and px of resnet50_dawnbench with other schedules, whose steps are counted below; the network and parts of
# imagenette_128_20 and imagenette_192_5 at other px.
SLOW = {"resnet50_dawnbench_21", "resnet50_dawnbench_32k", "imagenette_128_5", "imagenette_192_20"}


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in RECIPES]
)
def test_recipe_runs_two_steps_of_each_stage(recipe: str, tmp_path: Path) -> None:
    arguments = ["train", f"recipe={recipe}"]
    assert main([*arguments, "data.backend=synthetic", "dry_run=true", f"run_dir={tmp_path / 'plan'}"]) == 0
    stages = json.loads((tmp_path / "plan" / "plan.json").read_text())["stages"]
    arguments += ["data.backend=synthetic", "data.num_train=64", "data.num_val=4", "trainer.steps_per_stage=2"]
    arguments += [
        "trainer.accelerator=cpu",
        "trainer.precision=fp32",
        "trainer.compile=false",
        f"run_dir={tmp_path / 'run'}",
    ]
    arguments += [f"stages.{row}.batch_size=2" for row in range(len(stages))]
    config = compose_run([f"recipe={recipe}"]).config
    # Two networks are an ensemble too, and in one recipe they say as much as in four.
    arguments.append(f"model.ensemble={2 if recipe == 'imagenette_192_5' else 1}")
    if config.optimizer.kind == "muon_sgd":
        # The matrix products of each further round take a CPU a second a step.
        arguments.append("optimizer.newton_schulz_steps=1")
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


def test_the_21_epoch_recipe_has_the_published_steps(tmp_path: Path) -> None:
    assert main(["train", "recipe=resnet50_dawnbench_21", "dry_run=true", f"run_dir={tmp_path / 'run'}"]) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    # 20 x ceil(1281167 / 2048) + ceil(1281167 / 1024)
    assert plan["total_steps"] == 20 * 626 + 1252
    assert plan["px"] == [96] * 12 + [128] * 6 + [224] * 2 + [288]
    assert max(plan["lr"]) == plan["lr"][5 * 626 - 1] == 1.2
    assert plan["lr"][-1] == pytest.approx(1e-4)


# The first update has 1/40 of an epoch behind it, of 14 in which the rate rises to 25 and the momentum falls to 0.90;
# update 559 ends epoch 14; then 24.8 and 0.08 the other way over 14 epochs, of which update 560 makes 1/40.
TABLE_32K = [
    (0, 25 / 560, 0.98 - 0.08 / 560),
    (559, 25.0, 0.90),
    (560, 25 - 24.8 / 560, 0.90 + 0.08 / 560),
    (1158, 0.2, 0.98),
]


def test_the_32k_recipe_is_the_published_one_step_by_step(tmp_path: Path) -> None:
    arguments = ["recipe=resnet50_dawnbench_32k", "data.backend=synthetic", "dry_run=true"]
    assert main(["train", *arguments, f"run_dir={tmp_path / 'run'}"]) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["total_steps"] == len(plan["lr"]) == 1159
    assert plan["batch_size"] == [32768] * 27 + [16384]
    # One GPU takes 256 images at once.
    assert [stage["accumulate"] for stage in plan["stages"]] == [128, 128, 128, 64]
    config = compose_run(arguments).config
    steps = build_plan(
        config.stages,
        num_train=plan["num_train"],
        world_size=128,
        device_batch_size=config.trainer.device_batch_size,
        steps_per_stage=None,
    )
    assert [epoch.accumulate for epoch in steps.epochs] == [1] * 28
    schedule = build_schedule(config, steps)
    for step, lr, momentum in TABLE_32K:
        assert plan["lr"][step] == schedule.lr(step) == pytest.approx(lr, rel=1e-9)
        assert schedule.momentum(step) == pytest.approx(momentum, rel=1e-9)
    assert [f"{plan['lr'][step]:.4f}" for step in (0, 560)] == ["0.0446", "24.9557"]
    assert max(plan["lr"]) == plan["lr"][559] == 25
    assert plan["lr"][1158] == 0.2


def test_the_fast_recipe_has_at_most_18_epochs() -> None:
    assert sum(stage.epochs for stage in compose_run(["recipe=resnet50_fast"]).config.stages) <= 18


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.startswith("imagenette")])
def test_imagenette_recipes_keep_the_boards_rules(recipe: str) -> None:
    _, px, epochs = recipe.split("_")
    stages = compose_run([f"recipe={recipe}"]).config.stages
    assert sum(stage.epochs for stage in stages) == int(epochs)
    assert max(stage.px for stage in stages) == stages[-1].px == int(px)
    assert all(stage.val_px <= stage.px for stage in stages)
