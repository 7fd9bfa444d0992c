"""The plan of a run before it starts: ``plan.json`` and the text that is printed.

No torch and no rich here: ``dry_run=true`` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from fasttrain.schedule.schedule import Schedule
from fasttrain.stages import EpochPlan, Plan

SCHEMA = 1

# What "source" means to a reader: how the numbers of images and classes are known.
SOURCES = {
    "scan": "scan: counted in the data",
    "expected": "expected: the config's numbers, no data was scanned",
}

# (key, value, where it came from), e.g. ("optimizer.lr", "1.7", "command line").
Override = tuple[str, object, str]


def plan_document(
    plan: Plan,
    schedule: Schedule,
    *,
    source: str,
    num_val: int,
    num_classes: int,
    settings: Mapping[str, str],
) -> dict[str, Any]:
    """The content of ``plan.json``: plain types, the run as it will be executed.

    With ``trainer.steps_per_stage`` each stage has one epoch of that many steps, and the learning rates are
    the recipe's own at those places.

    Args:
        plan: The run.
        schedule: Its learning rates.
        source: ``scan`` or ``expected``.
        num_val: Validation images.
        num_classes: Classes.
        settings: What is trained and how, label to text (``settings_text.plan_settings``).
    """
    rows = [
        {
            "epochs": len(epochs),
            "px": epochs[0].px,
            "min_area": epochs[0].min_area,
            "batch_size": epochs[0].batch_size,
            "accumulate": epochs[0].accumulate,
            "val_px": epochs[0].val_px,
            "steps_per_epoch": epochs[0].steps,
        }
        for epochs in _by_stage(plan)
    ]
    return {
        "schema": SCHEMA,
        "source": source,
        "settings": dict(settings),
        "stages": rows,
        "total_steps": plan.total_steps,
        "total_epochs": len(plan.epochs),
        "num_train": plan.num_train,
        "num_val": num_val,
        "num_classes": num_classes,
        "world_size": plan.world_size,
        "lr": [schedule.lr(step) for step in range(plan.total_steps)],
        "px": [epoch.px for epoch in plan.epochs],
        "batch_size": [epoch.batch_size for epoch in plan.epochs],
    }


def print_plan(
    plan: Plan,
    schedule: Schedule,
    *,
    recipe: str,
    source: str,
    num_val: int,
    num_classes: int,
    settings: Mapping[str, str],
    overrides: Sequence[Override] = (),
) -> str:
    """The plan as text for people, without a newline at its end.

    Args:
        plan: The run.
        schedule: Its learning rates.
        recipe: Name of the recipe.
        source: ``scan`` or ``expected``.
        num_val: Validation images.
        num_classes: Classes.
        settings: What is trained and how, label to text, a line each.
        overrides: Settings that differ from the recipe's and where each came from.
    """
    steps, images = _count(plan.total_steps, "step"), plan.images_done(plan.total_steps - 1)
    facts = [
        ("recipe", recipe),
        (
            "run",
            f"{_count(len(plan.epochs), 'epoch')}, {steps}, {images:,} images",
        ),
        ("data", f"{plan.num_train:,} train, {num_val:,} val, {num_classes:,} classes ({SOURCES[source]})"),
        *settings.items(),
        ("ranks", _ranks(plan)),
        ("learning rate", _learning_rate(schedule)),
        ("effective", _effective_learning_rate(plan, schedule)),
        ("momentum", _momentum(schedule)),
        ("shapes", ", ".join(f"{px} px x {batch:,} images" for px, batch in plan.shapes())),
    ]
    blocks = [
        "\n".join(f"{name:<15}{text}" for name, text in facts),
        _stage_table(plan, schedule),
        *_notes(plan),
    ]
    if overrides:
        rows = [[key, "=", str(value), f"from {origin}"] for key, value, origin in overrides]
        blocks.append("overrides\n" + _columns(rows, align="<<<<", indent=2))
    return "\n\n".join(blocks)


def _by_stage(plan: Plan) -> list[list[EpochPlan]]:
    """The run's epochs, one list for each row of the stage table."""
    return [list(epochs) for _, epochs in groupby(plan.epochs, key=lambda epoch: epoch.stage)]


def _ranks(plan: Plan) -> str:
    """Ranks, and how the global batch is made of what each takes at once, for each distinct way."""
    ways = dict.fromkeys(
        f"{epoch.batch_size:,} = {_count(plan.world_size, 'rank')} x {epoch.accumulate} accumulated"
        f" x {plan.micro_batch(epoch):,}"
        for epoch in plan.epochs
    )
    return f"{plan.world_size}; global batch " + "; ".join(ways)


def _learning_rate(schedule: Schedule) -> str:
    """The learning rate as it is given."""
    floor = " as its floor" if schedule.kind == "step" else ""
    scaling = " x batch / first batch" if schedule.scale_with_batch else ""
    return (
        f"optimizer.lr={schedule.peak_lr:g}{scaling}, {schedule.kind}, "
        f"warmup_epochs={schedule.warmup_epochs:g}, end_lr={schedule.end_lr:g}{floor}"
    )


def _effective_learning_rate(plan: Plan, schedule: Schedule) -> str:
    """The learning rates that the updates use, scaled or not."""
    used = [schedule.lr(step) for step in range(plan.total_steps)]
    return (
        f"{used[0]:.4g} at step 0, {max(used):.4g} at step {used.index(max(used)):,}, {used[-1]:.4g} at step "
        f"{len(used) - 1:,}; the same on any number of ranks"
    )


def _momentum(schedule: Schedule) -> str:
    if schedule.cycle is None:
        return f"{schedule.base_momentum:g}"
    return (
        f"{schedule.cycle.high:g} at the lowest learning rate, {schedule.cycle.low:g} at the peak "
        f"(schedule.momentum; optimizer.momentum={schedule.base_momentum:g} is not used)"
    )


def _stage_table(plan: Plan, schedule: Schedule) -> str:
    """One line a stage; the first column is the row that ``stages.ROW.px=...`` overrides."""
    header = ["stage", "epochs", "px", "min_area", "batch", "accumulate", "device batch", "val px"]
    rows = [[*header, "steps/epoch", "lr first", "lr last"]]
    for epochs in _by_stage(plan):
        first, last = epochs[0], epochs[-1]
        steps = f"{first.steps:,}" if first.steps == first.full_steps else f"{first.steps:,} of {first.full_steps:,}"
        rows.append(
            [
                str(first.stage),
                f"{first.epoch + 1}-{last.epoch + 1}" if len(epochs) > 1 else str(first.epoch + 1),
                str(first.px),
                f"{first.min_area:g}",
                f"{first.batch_size:,}",
                str(first.accumulate),
                f"{plan.micro_batch(first):,}",
                f"{first.val_px} rect" if first.rectangular_val else str(first.val_px),
                steps,
                f"{schedule.lr(first.first_step):.4g}",
                f"{schedule.lr(last.first_step + last.steps - 1):.4g}",
            ]
        )
    return _columns(rows, align="<" + ">" * (len(rows[0]) - 1))


def _notes(plan: Plan) -> list[str]:
    """What a reader would not expect from the numbers given."""
    notes = []
    if plan.recipe_epochs != len(plan.epochs) or any(e.steps < e.full_steps for e in plan.epochs):
        notes.append(
            f"note: trainer.steps_per_stage runs a part of the recipe's {plan.recipe_epochs} epochs; "
            "learning rates are those at each stage's first epoch"
        )
    for epochs in _by_stage(plan):
        first = epochs[0]
        micro_batch, rank_batch = plan.micro_batch(first), first.batch_size // plan.world_size
        if 1 == micro_batch < rank_batch:
            notes.append(
                f"note: stage {first.stage} takes one image at a time: no larger part within "
                f"trainer.device_batch_size divides the {rank_batch:,} images of a rank"
            )
    return notes


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _columns(rows: Sequence[Sequence[str]], *, align: str, indent: int = 0) -> str:
    """Rows as text in columns; ``align`` holds ``<`` or ``>`` for each column."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)) for row in rows
    )
    return "\n".join(" " * indent + line.rstrip() for line in lines)
