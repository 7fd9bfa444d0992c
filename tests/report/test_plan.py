"""``plan.json`` and the printed plan."""

from __future__ import annotations

import json
from types import SimpleNamespace

from fasttrain.config.schema import MomentumCycleConfig, ScheduleConfig, StageConfig, StepScheduleConfig
from fasttrain.report.plan import plan_document, print_plan
from fasttrain.schedule.schedule import Schedule, build_schedule
from fasttrain.stages import Plan, build_plan

STAGES = [
    StageConfig(epochs=2, px=96, min_area=0.25, batch_size=2_000, val_px=128),
    StageConfig(epochs=1, px=288, min_area=0.5, batch_size=1_000, val_px=320, rectangular_val=True),
]
LINEAR = ScheduleConfig(
    kind="linear",
    warmup_epochs=1,
    end_lr=0.2,
    scale_with_batch=False,
    momentum=MomentumCycleConfig(high=0.98, low=0.90),
)

SETTINGS = {"network": "resnet50", "target": "93 % top5"}


def run(
    schedule: ScheduleConfig = LINEAR,
    *,
    device_batch_size: int | None = 250,
    steps_per_stage: int | None = None,
) -> tuple[Plan, Schedule]:
    plan = build_plan(
        STAGES,
        num_train=6_000,
        world_size=2,
        device_batch_size=device_batch_size,
        steps_per_stage=steps_per_stage,
    )
    config = SimpleNamespace(schedule=schedule, optimizer=SimpleNamespace(lr=25.0, momentum=0.9))
    return plan, build_schedule(config, plan)


def text(plan: Plan, schedule: Schedule, **given: object) -> str:
    facts = {"recipe": "two_stages", "source": "scan", "num_val": 5_000, "num_classes": 1_000, "settings": {}, **given}
    return print_plan(plan, schedule, **facts)


def test_document_of_a_whole_run() -> None:
    document = plan_document(*run(), source="expected", num_val=5_000, num_classes=1_000, settings=SETTINGS)
    # Three steps in each of the first two epochs, six in the last; warm-up of one epoch.
    lr = document.pop("lr")
    assert [round(value, 6) for value in lr[:6]] == [8.333333, 16.666667, 25, 20.866667, 16.733333, 12.6]
    assert [round(value, 6) for value in lr[6:]] == [10.533333, 8.466667, 6.4, 4.333333, 2.266667, 0.2]
    assert document == {
        "schema": 1,
        "source": "expected",
        "settings": {"network": "resnet50", "target": "93 % top5"},
        "stages": [
            {
                "epochs": 2,
                "px": 96,
                "min_area": 0.25,
                "batch_size": 2_000,
                "accumulate": 4,
                "val_px": 128,
                "steps_per_epoch": 3,
            },
            {
                "epochs": 1,
                "px": 288,
                "min_area": 0.5,
                "batch_size": 1_000,
                "accumulate": 2,
                "val_px": 320,
                "steps_per_epoch": 6,
            },
        ],
        "total_steps": 12,
        "total_epochs": 3,
        "num_train": 6_000,
        "num_val": 5_000,
        "num_classes": 1_000,
        "world_size": 2,
        "px": [96, 96, 288],
        "batch_size": [2_000, 2_000, 1_000],
    }


def test_document_is_plain_json_and_adds_up_with_steps_per_stage() -> None:
    plan, schedule = run(steps_per_stage=2)
    document = plan_document(plan, schedule, source="scan", num_val=5_000, num_classes=1_000, settings={})
    assert json.loads(json.dumps(document)) == document
    assert [(row["epochs"], row["steps_per_epoch"]) for row in document["stages"]] == [(1, 2), (1, 2)]
    assert document["total_steps"] == len(document["lr"]) == 4
    assert document["total_epochs"] == len(document["px"]) == len(document["batch_size"]) == 2
    assert document["lr"] == [schedule.lr(step) for step in range(4)]


def test_text_of_a_whole_run() -> None:
    overrides = [
        ("optimizer.lr", 25.0, "command line"),
        ("data.root", "/imagenet", "recipes/two_stages.yaml"),
    ]
    assert text(*run(), settings=SETTINGS, overrides=overrides).splitlines() == [
        "recipe         two_stages",
        "run            3 epochs, 12 steps, 18,000 images",
        "data           6,000 train, 5,000 val, 1,000 classes (scan: counted in the data)",
        "network        resnet50",
        "target         93 % top5",
        "ranks          2; global batch 2,000 = 2 ranks x 4 accumulated x 250; 1,000 = 2 ranks x 2 accumulated x 250",
        "learning rate  optimizer.lr=25, linear, warmup_epochs=1, end_lr=0.2",
        "effective      8.333 at step 0, 25 at step 2, 0.2 at step 11; the same on any number of ranks",
        "momentum       0.98 at the lowest learning rate, 0.9 at the peak "
        "(schedule.momentum; optimizer.momentum=0.9 is not used)",
        "shapes         96 px x 250 images, 288 px x 250 images",
        "",
        "stage  epochs   px  min_area  batch  accumulate  device batch    val px  steps/epoch  lr first  lr last",
        "0         1-2   96      0.25  2,000           4           250       128            3     8.333     12.6",
        "1           3  288       0.5  1,000           2           250  320 rect            6     10.53      0.2",
        "",
        "overrides",
        "  optimizer.lr  =  25.0       from command line",
        "  data.root     =  /imagenet  from recipes/two_stages.yaml",
    ]


def test_text_says_what_is_expected_only_and_what_is_scaled() -> None:
    scaled = StepScheduleConfig(
        kind="step",
        warmup_epochs=0.5,
        end_lr=0.001,
        scale_with_batch=True,
        momentum=None,
        drop_at_frac=[0.5],
        factor=0.1,
    )
    shown = text(*run(scaled), source="expected")
    assert "(expected: the config's numbers, no data was scanned)" in shown
    assert "=25 x batch / first batch, step, warmup_epochs=0.5, end_lr=0.001 as its floor\n" in shown
    assert "1.25 at step 11" in shown
    assert "momentum       0.9\n" in shown
    assert "overrides" not in shown


def test_text_says_that_a_part_of_the_recipe_runs() -> None:
    shown = text(*run(steps_per_stage=2))
    assert "run            2 epochs, 4 steps, 6,000 images" in shown
    assert "  2 of 3  " in shown
    assert "note: trainer.steps_per_stage runs a part of the recipe's 3 epochs" in shown


def test_text_warns_of_images_one_at_a_time() -> None:
    assert "note" not in text(*run(device_batch_size=1_000))
    shown = text(*run(device_batch_size=1))
    assert "note: stage 1 takes one image at a time" in shown
    assert "divides the 500 images of a rank" in shown
