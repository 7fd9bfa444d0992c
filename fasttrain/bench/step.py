"""``fasttrain bench step``: the training step in short trainings, shape by shape, settings side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fasttrain.bench.arguments import StepFlags
from fasttrain.bench.arms import FILL_EPOCHS, Arm, Shape, measured_run, num_classes_of
from fasttrain.bench.bare_loop import time_bare_loop
from fasttrain.bench.figures import Outcome
from fasttrain.bench.step_report import ShapeResult, report_arm, report_files_over_random, report_recipe
from fasttrain.bench.training import Measured, rates, train_briefly
from fasttrain.errors import ConfigError, Problem
from fasttrain.strategy.world import World
from fasttrain.trainer.meters import RATE_SKIP_STEPS

CLOCK = (
    "images over seconds of one epoch's steps by the trainer's own meter, the first 5 of each left out, the device "
    "synchronised at both ends"
)


def bench_step(flags: StepFlags, arms: Sequence[Arm], world: World) -> Outcome:
    """Measure every shape of every arm, the arms taking turns.

    Raises:
        ConfigError: An epoch of the files has too few steps.
    """
    results: dict[tuple[str, Shape], ShapeResult] = defaultdict(ShapeResult)
    num_classes = num_classes_of(arms[0].run, world)
    several = len(arms) > 1 or flags.bare
    for repeats in split_repeats(flags.repeats, flags.rounds or (2 if several else 1)):
        for arm in arms:
            measured = measure_arm(
                arm, world, repeats=repeats, steps=flags.steps, num_classes=num_classes, launches=flags.launches
            )
            for shape in arm.shapes:
                _add(results[arm.label, shape], measured, shape)
                if flags.bare:
                    results[arm.label, shape].bare_rates += time_bare_loop(
                        arm.run.config, shape, world, steps=flags.steps, repeats=repeats, num_classes=num_classes
                    )
    outcome = Outcome()
    for arm in arms:
        report_arm(outcome, arm, results, world, num_classes=num_classes)
        if flags.px is None and flags.batch is None:
            report_recipe(outcome, arm, results, world)
    report_files_over_random(outcome, arms, results)
    if flags.launches and not any(result.launches for result in results.values()):
        outcome.notes.append("launches not counted: they need a GPU and random pixels")
    return outcome


def split_repeats(repeats: int, rounds: int) -> list[int]:
    """How many measurements each round takes: as equal as can be, none without any."""
    rounds = min(rounds, repeats)
    return [repeats // rounds + (part < repeats % rounds) for part in range(rounds)]


def measure_arm(
    arm: Arm, world: World, *, repeats: int, steps: int, num_classes: int, launches: bool = False
) -> list[Measured]:
    """One training of an arm; the epochs that only fill caches are left out."""
    random = arm.data == "random"
    extra = int(launches and random)
    run = measured_run(
        arm, repeats=repeats, steps=steps, world_size=world.size, num_classes=num_classes, extra_rows=extra
    )
    measured = train_briefly(run, world, profile_from_epoch=repeats * len(arm.shapes) if extra else None)
    if random:
        return measured
    return [m for place, m in enumerate(measured) if place % (FILL_EPOCHS + repeats) >= FILL_EPOCHS]


def _add(result: ShapeResult, measured: Sequence[Measured], shape: Shape) -> None:
    of_shape = [m for m in measured if (m.row.px, m.row.batch_size) == (shape.px, shape.batch_size)]
    result.rates += rates(measured, shape.px, shape.batch_size)
    result.peak_bytes += [m.peak_bytes for m in of_shape if m.peak_bytes is not None and not m.profiled]
    result.launches += [m.launches for m in of_shape if m.launches is not None]
    if not result.rates:
        raise ConfigError(
            Problem(
                f"no step was timed at {shape.px} px: an epoch of the files has no more steps than the first "
                f"{RATE_SKIP_STEPS}, which do not count",
                f"--batch {max(1, shape.batch_size // 4)}",
            )
        )
