"""What is decided before torch is imported: checks, the scan, the plan, the folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import fasttrain.data.check
import fasttrain.model.check
import fasttrain.optimizer.check
import fasttrain.schedule.check
import fasttrain.strategy.check
import fasttrain.trainer.check
from fasttrain import stages
from fasttrain.config.compose import ComposedRun
from fasttrain.config.describe import COMMAND_LINE
from fasttrain.config.flat import flatten
from fasttrain.config.schema import RunConfig
from fasttrain.data.scan import Scan, scan
from fasttrain.errors import ConfigError, MachineError, Problem
from fasttrain.report.clock import Clock, process_start_time
from fasttrain.report.console import log
from fasttrain.report.files import write_json, write_text
from fasttrain.report.machine import command_line
from fasttrain.report.plan import plan_document, print_plan
from fasttrain.report.run_dir import choose_run_dir, has_checkpoint, slurm_job
from fasttrain.report.settings_text import plan_settings
from fasttrain.schedule.schedule import Schedule, build_schedule
from fasttrain.stages import Plan
from fasttrain.strategy.early_context import begin_context
from fasttrain.strategy.launch import Handover, handed_over
from fasttrain.strategy.world import World
from fasttrain.trainer.results import MIN_CLASSES_FOR_TOP5

# Seconds that the other ranks of a machine wait for its first one to make the shapes.
SHAPES_TIMEOUT_S = 300

CHECKS: tuple[Callable[[RunConfig], list[Problem]], ...] = (
    lambda config: stages.check(config, config.data.num_train),
    fasttrain.data.check.check,
    fasttrain.model.check.check,
    fasttrain.optimizer.check.check,
    fasttrain.schedule.check.check,
    fasttrain.strategy.check.check,
    fasttrain.trainer.check.check,
)


def begin_clock() -> Clock:
    """The run's clock, in its first part, which began with the process that the user started."""
    left = handed_over()
    return Clock(left.process_start if left else process_start_time(), first="setup: plan")


def check_rooms(config: RunConfig, provenance: Mapping[str, str] | None = None) -> None:
    """Ask every room what it cannot run.

    Args:
        config: The run.
        provenance: Where each value came from; None where nobody gave any on a command line.

    Raises:
        ConfigError: With the problems of all rooms together.
    """
    problems = [problem for check in CHECKS for problem in check(config)]
    problems += fasttrain.data.check.check_given(config, provenance or {})
    if not has_checkpoint(config):
        problems += fasttrain.model.check.check_first_weights(config)
    if problems:
        raise ConfigError(problems)


def scan_images(config: RunConfig, world: World) -> Scan:
    """List the images; where the project's own set is missing, make it first (not in a dry run)."""
    if config.data.kind == "shapes" and config.data.backend != "synthetic" and not config.dry_run:
        _make_shapes(config, world)
    return scan(config, local_rank=world.local_rank)


def _make_shapes(config: RunConfig, world: World) -> None:
    from fasttrain.data.shapes import FINGERPRINT, ensure_shapes

    root = Path(str(config.data.root))
    if world.local_rank == 0:
        ensure_shapes(root, num_train=config.data.num_train, num_val=config.data.num_val)
        return
    deadline = time.monotonic() + SHAPES_TIMEOUT_S
    while not (root / FINGERPRINT).is_file():
        if time.monotonic() > deadline:
            raise MachineError(
                Problem(
                    f"the first rank of this machine did not make {root} in {SHAPES_TIMEOUT_S} s",
                    f"fasttrain prepare shapes --root {root}",
                )
            )
        time.sleep(0.2)


def lay_out(config: RunConfig, images: Scan, world: World) -> tuple[Plan, Schedule]:
    """The stage table and the schedule for these images and ranks.

    Raises:
        ConfigError: They cannot be run together.
    """
    problems = stages.check(config, images.num_train, world.size)
    problems += fasttrain.data.check.check_shards(config, world.size)
    if config.target.metric == "top5" and images.num_classes < MIN_CLASSES_FOR_TOP5:
        problems.append(
            Problem(
                f"target.metric=top5, but the data has {images.num_classes} classes: with fewer than "
                f"{MIN_CLASSES_FOR_TOP5} five answers say nothing",
                "target.metric=top1",
            )
        )
    if problems:
        raise ConfigError(problems)
    plan = stages.build_plan(
        config.stages,
        num_train=images.num_train,
        world_size=world.size,
        device_batch_size=config.trainer.device_batch_size,
        steps_per_stage=config.trainer.steps_per_stage,
    )
    if problems := fasttrain.trainer.check.check_averaging_steps(config, plan):
        raise ConfigError(problems)
    return plan, build_schedule(config, plan)


def choose_folder(config: RunConfig, world: World) -> tuple[Path, str | None]:
    """The run's folder and what to resume from, the same on all ranks; only rank 0 makes a folder named by time."""
    if config.run_dir is None and world.rank != 0 and slurm_job() is None:
        return Path(os.devnull), config.resume
    return choose_run_dir(config)


def announce(run: ComposedRun, images: Scan, plan: Plan, schedule: Schedule) -> None:
    """Print what the scan passed over, and the plan."""
    for note in images.notes:
        log.info(note)
    text = print_plan(
        plan,
        schedule,
        recipe=run.config.recipe,
        source=images.source,
        num_val=images.num_val,
        num_classes=images.num_classes,
        settings=plan_settings(run.config),
        overrides=given(run),
    )
    log.info(text)


def save_plan(run: ComposedRun, images: Scan, plan: Plan, schedule: Schedule, run_dir: Path) -> None:
    """Write plan.json, config.yaml and, with ``data.on_bad_file=skip``, skipped_files.tsv."""
    document = plan_document(
        plan,
        schedule,
        source=images.source,
        num_val=images.num_val,
        num_classes=images.num_classes,
        settings=plan_settings(run.config),
    )
    write_json(run_dir / "plan.json", document)
    write_text(run_dir / "config.yaml", run.text)
    if run.config.data.on_bad_file == "skip":
        rows = [f"{path}\t{reason}\n" for path, reason in images.skipped]
        write_text(run_dir / "skipped_files.tsv", "".join(["path\treason\n", *rows]))


def given(run: ComposedRun) -> list[tuple[str, object, str]]:
    """The settings that the command line gave, as (key, value, origin)."""
    values = flatten(run.values)
    rows: list[tuple[str, object, str]] = [
        (group, option, COMMAND_LINE)
        for group, option in run.choices.items()
        if run.provenance.get(group) == COMMAND_LINE and group != "recipe"
    ]
    if "stages" in values:
        values["stages"] = f"{len(values['stages'])} rows, see the table"
    rows += [(key, value, COMMAND_LINE) for key, value in values.items() if run.provenance.get(key) == COMMAND_LINE]
    rows += [
        (key, getattr(run.config.stages[int(key.split(".")[1])], key.split(".")[2]), COMMAND_LINE)
        for key, origin in run.provenance.items()
        if key.startswith("stages.") and origin == COMMAND_LINE
    ]
    return rows


def begin_device(config: RunConfig, world: World) -> None:
    """Let this rank's GPU, where there is one, come up while the libraries are imported."""
    if config.trainer.accelerator != "cpu" and not world.must_launch:
        begin_context(world.local_rank)


def check_libraries(config: RunConfig, images: Scan) -> None:
    """The checks that need torch and timm: names of networks and optimizers, sizes that the network takes.

    Raises:
        ConfigError: With all that they found.
    """
    if problems := library_problems(config, images.num_classes):
        raise ConfigError(problems)


def library_problems(config: RunConfig, num_classes: int) -> list[Problem]:
    """What torch and timm cannot build of a run whose data has so many classes; imports both."""
    from fasttrain.model.check import check_libraries as check_model
    from fasttrain.optimizer.check import check_libraries as check_optimizer

    return [*check_model(config, num_classes), *check_optimizer(config, num_classes)]


def check_devices(config: RunConfig, world: World) -> None:
    """See that the machine has a device for each rank before any is started."""
    from fasttrain.strategy.check import choose_accelerator

    choose_accelerator(config, world)


def handover(run: ComposedRun, run_dir: Path, resume: str | None) -> Handover:
    """What this process knows and the ranks that it starts must know too."""
    config = replace(run.config, run_dir=str(run_dir), resume=resume)
    return Handover(
        config=replace(run, config=config).text,
        command=command_line(sys.orig_argv, os.environ),
        process_start=process_start_time(),
        overrides=[list(map(str, row)) for row in given(run)],
    )
