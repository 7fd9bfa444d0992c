"""Where a run begins: ``train`` below is the whole of it, in order; each line names the room that does it.

``python train.py recipe=NAME key=value ...`` is ``fasttrain train ...`` is ``python -m fasttrain train ...``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fasttrain import commands
from fasttrain.config.compose import ComposedRun
from fasttrain.errors import DeviceLost
from fasttrain.report.console import configure_logging, log
from fasttrain.report.run_dir import continues, holds_run, open_run_dir
from fasttrain.run import planning
from fasttrain.run.environment import prepare_environment
from fasttrain.run.exits import exit_code_of, leave_at_once
from fasttrain.run.imports import spared_imports
from fasttrain.strategy.launch import handed_over, launch_ranks
from fasttrain.strategy.world import find_world


def train(run: ComposedRun) -> int:
    """One run, from its config to its report; returns the exit code. Until the plan is out, no torch."""
    config, clock = run.config, planning.begin_clock()
    planning.check_rooms(config, run.provenance)
    world = find_world(config)
    images = planning.scan_images(config, world)
    plan, schedule = planning.lay_out(config, images, world)
    run_dir, resume = planning.choose_folder(config, world)
    if world.rank == 0 and handed_over() is None:
        open_run_dir(run_dir, resuming=continues(run_dir, resume))
        configure_logging(run_dir, world.rank)
        planning.announce(run, images, plan, schedule)
    else:
        configure_logging(run_dir if world.rank == 0 else None, world.rank)
    if config.dry_run:
        if world.rank == 0 and not holds_run(run_dir):
            planning.save_plan(run, images, plan, schedule, run_dir)
        if world.rank == 0:
            log.info("dry run: the names of network and optimizer are looked up in timm and torch when it is trained")
        return 0
    clock.mark("setup: libraries")
    planning.begin_device(config, world)
    with spared_imports():
        planning.check_libraries(config, images)
    if world.must_launch:
        planning.check_devices(config, world)
        launch_ranks(world.size, planning.handover(run, run_dir, resume))
        return 0

    with spared_imports():
        from fasttrain.run import found_checkpoint, training

        training.import_compiler(config)

    clock.mark("setup: build")
    checkpoint = found_checkpoint.find_checkpoint(run, images, plan, run_dir, resume)
    if checkpoint is not None:
        found_checkpoint.keep_best(checkpoint, run_dir, world)
        if found_checkpoint.is_finished(checkpoint, config, plan):
            training.report_finished(run, images, plan, world, run_dir, checkpoint, clock)
            return 0
    if world.rank == 0:
        planning.save_plan(run, images, plan, schedule, run_dir)
    parts = training.build(run, images, plan, schedule, world, run_dir, checkpoint, clock)
    training.fit(parts)
    return training.finish(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and turn its errors into words and an exit code.

    Args:
        argv: The words after the program's name; None for the process's own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_environment()
    try:
        return commands.dispatch(arguments, train)
    except BaseException as error:
        code = exit_code_of(error, debug="debug=true" in arguments)
        if isinstance(error, DeviceLost):
            leave_at_once(code)
        return code
