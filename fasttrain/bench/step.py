"""``fasttrain bench step``: the training step in short trainings, shape by shape, settings side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fasttrain.bench.arguments import StepFlags
from fasttrain.bench.arms import FILL_EPOCHS, Arm, Shape, measured_run, num_classes_of
from fasttrain.bench.bare_loop import time_bare_loop
from fasttrain.bench.figures import Outcome
from fasttrain.bench.step_report import ShapeResult, report_arm, report_recipe
from fasttrain.bench.training import Measured, train_briefly
from fasttrain.errors import FasttrainError
from fasttrain.strategy.world import World

CLOCK = (
    "images over seconds of one epoch's steps by the trainer's own meter, the first 5 of each left out, the device "
    "synchronised at both ends"
)


def bench_step(flags: StepFlags, arms: Sequence[Arm], world: World) -> Outcome:
    """Measure every shape of every arm, the arms taking turns.

    Raises:
        FasttrainError: What ends a training ends the benchmark.
    """
    results: dict[tuple[str, Shape], ShapeResult] = defaultdict(ShapeResult)
    num_classes = num_classes_of(arms[0].run, world)
    for repeats in split_repeats(flags.repeats, flags.rounds or (2 if len(arms) > 1 else 1)):
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
    return outcome


def split_repeats(repeats: int, rounds: int) -> list[int]:
    """How many measurements each round takes: as equal as can be, none without any."""
    rounds = min(rounds, repeats)
    return [repeats // rounds + (part < repeats % rounds) for part in range(rounds)]


def measure_arm(
    arm: Arm, world: World, *, repeats: int, steps: int, num_classes: int, launches: bool = False
) -> list[Measured]:
    """One training of an arm; the epochs that only fill caches are left out."""
    run = measured_run(
        arm, repeats=repeats, steps=steps, world_size=world.size, num_classes=num_classes, extra_rows=int(launches)
    )
    counted = repeats * len(arm.shapes)
    first_profiled = counted if launches and arm.data == "random" else None
    measured = train_briefly(run, world, profile_from_epoch=first_profiled)
    if arm.data == "random":
        return measured
    fills = FILL_EPOCHS
    kept: list[Measured] = []
    for stage in dict.fromkeys(m.row.stage for m in measured):
        kept += [m for m in measured if m.row.stage == stage][fills : fills + repeats]
    return kept


def _add(result: ShapeResult, measured: Sequence[Measured], shape: Shape) -> None:
    for m in measured:
        if (m.row.px, m.row.batch_size) != (shape.px, shape.batch_size):
            continue
        if m.launches is not None:
            result.launches.append(m.launches)
        elif m.row.images_per_second is not None:
            result.rates.append(m.row.images_per_second)
            result.peak_bytes += [m.peak_bytes] if m.peak_bytes is not None else []
    if not result.rates:
        raise FasttrainError(f"no step was timed at {shape.px} px: an epoch has too few steps after the first ones")
