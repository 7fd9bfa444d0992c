"""``fasttrain bench step``: the training step in short trainings, shape by shape, settings side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fasttrain.bench.arguments import StepFlags
from fasttrain.bench.arms import Arm, Shape, measured_run, num_classes_of
from fasttrain.bench.bare_loop import time_bare_loop
from fasttrain.bench.figures import Outcome, lacking
from fasttrain.bench.progress import Watch, rate_text
from fasttrain.bench.step_report import ShapeResult, report_arm, report_files_over_random, report_recipe, shape_name
from fasttrain.bench.training import Measured, Take, train_briefly
from fasttrain.errors import ConfigError, Problem
from fasttrain.run import planning
from fasttrain.strategy.check import choose_accelerator
from fasttrain.strategy.world import World
from fasttrain.trainer.meters import RATE_SKIP_STEPS

CLOCK = (
    "images over seconds of one epoch's steps (--steps of them) by the trainer's own meter, the first 5 of each left "
    "out, the device synchronised at both ends; on files after a whole epoch that is not counted"
)


class StepBenchmark:
    """Owns what ``bench step`` has measured; ``outcome`` and ``missing`` tell of it at any time."""

    def __init__(self, flags: StepFlags, arms: Sequence[Arm], world: World) -> None:
        self._flags, self._arms, self._world = flags, arms, world
        self._num_classes = 0
        self._results = {(arm.label, shape): ShapeResult() for arm in arms for shape in arm.shapes}
        several = len(arms) > 1 or flags.bare
        self._rounds = split_repeats(flags.repeats, flags.rounds or (2 if several else 1))

    def measure(self) -> None:
        """Measure every shape of every arm, the arms taking turns.

        Raises:
            ConfigError: An epoch of the files has too few steps.
        """
        self._num_classes = num_classes_of(self._arms[0].run, self._world)
        for number, repeats in enumerate(self._rounds, start=1):
            for arm in self._arms:
                turn = f"round {number}/{len(self._rounds)}"
                self._train(turn, arm, repeats)
                for shape in arm.shapes if self._flags.bare else ():
                    self._run_bare_loop(turn, arm, shape, repeats)

    def outcome(self) -> Outcome:
        """Figures and tables of what is measured."""
        outcome, flags, results = Outcome(), self._flags, self._results
        for arm in self._arms:
            report_arm(outcome, arm, results, self._world, num_classes=self._num_classes)
            if flags.px is None and flags.batch is None:
                report_recipe(outcome, arm, results, self._world)
        report_files_over_random(outcome, self._arms, results)
        if flags.launches and not any(self._counts_launches(arm) for arm in self._arms):
            outcome.notes.append("launches not counted: they need a GPU and random pixels")
        return outcome

    def missing(self) -> list[str]:
        """What is still to be measured."""
        found, wanted = [], self._flags.repeats
        for arm in self._arms:
            for shape in arm.shapes:
                result, name = self._results[arm.label, shape], shape_name(shape, arm.label)
                found += lacking(f"step, {name}", len(result.rates), wanted)
                if self._flags.bare:
                    found += lacking(f"bare loop, {name}", len(result.bare_rates), wanted)
                if self._counts_launches(arm):
                    found += lacking(f"launches a step, {name}", len(result.launches), len(self._rounds))
        return found

    def _counts_launches(self, arm: Arm) -> bool:
        on_gpu = choose_accelerator(arm.run.config, self._world) == "gpu"
        return self._flags.launches and arm.data == "random" and on_gpu

    def _train(self, turn: str, arm: Arm, repeats: int) -> None:
        watch, epochs = Watch(), list[Measured]()

        def take(epoch: Measured) -> None:
            epochs.append(epoch)
            self._results[arm.label, Shape(epoch.row.px, epoch.row.batch_size)].add(epoch)

        flags = self._flags
        warmup_s = measure_arm(
            arm,
            self._world,
            take,
            repeats=repeats,
            steps=flags.steps,
            num_classes=self._num_classes,
            launches=flags.launches,
        )
        watch.say(turn, arm.label, rates_text(epochs, arm.shapes), within=within(epochs, warmup_s))
        for shape in arm.shapes:
            _require_rates(self._results[arm.label, shape], shape)

    def _run_bare_loop(self, turn: str, arm: Arm, shape: Shape, repeats: int) -> None:
        watch = Watch()
        rates = time_bare_loop(
            arm.run.config,
            shape,
            self._world,
            steps=self._flags.steps,
            repeats=repeats,
            num_classes=self._num_classes,
        )
        self._results[arm.label, shape].bare_rates += rates
        watch.say(turn, arm.label, f"bare loop, {shape_name(shape)}: {rate_text(statistics.median(rates))}")


def split_repeats(repeats: int, rounds: int) -> list[int]:
    """How many measurements each round takes: as equal as can be, none without any."""
    rounds = min(rounds, repeats)
    return [repeats // rounds + (part < repeats % rounds) for part in range(rounds)]


def measure_arm(
    arm: Arm, world: World, take: Take, *, repeats: int, steps: int, num_classes: int, launches: bool = False
) -> float:
    """One training of an arm, each epoch given to ``take``; returns the seconds of its warm-up."""
    images = planning.scan_images(arm.run.config, world) if arm.data == "files" else None
    extra = int(launches and arm.data == "random")
    short = measured_run(
        arm,
        repeats=repeats,
        steps=steps,
        world_size=world.size,
        num_classes=num_classes,
        extra_rows=extra,
        images=images,
    )
    profile_from = repeats * len(arm.shapes) if extra else None
    return train_briefly(short, world, take, images=images, profile_from_epoch=profile_from)


def rates_text(epochs: Sequence[Measured], shapes: Sequence[Shape]) -> str:
    """The median rate of each shape in one training."""
    texts = []
    for shape in shapes:
        of_shape = [epoch for epoch in epochs if (epoch.row.px, epoch.row.batch_size) == (shape.px, shape.batch_size)]
        rates = [epoch.rate for epoch in of_shape if epoch.rate is not None]
        texts.append(f"{shape_name(shape)}: {rate_text(statistics.median(rates) if rates else None)}")
    return "; ".join(texts)


def within(epochs: Sequence[Measured], warmup_s: float) -> str:
    """What of a training's seconds measured nothing."""
    ends = [0.0, *(epoch.row.seconds for epoch in epochs)]
    fills_s = sum(ends[place + 1] - ends[place] for place, epoch in enumerate(epochs) if epoch.fills)
    text = f"{warmup_s:.1f} s warm-up and compilation"
    return f"{text}, {fills_s:.1f} s epochs that fill caches" if fills_s else text


def _require_rates(result: ShapeResult, shape: Shape) -> None:
    if not result.rates:
        raise ConfigError(
            Problem(
                f"no step was timed at {shape.px} px: an epoch of the files has no more steps than the first "
                f"{RATE_SKIP_STEPS}, which do not count",
                f"--batch {max(1, shape.batch_size // 4)}",
            )
        )
