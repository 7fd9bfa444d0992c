"""Time and cost of a recipe that nobody has run, from measured images/s: projected, and called so."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fasttrain.config.compose import compose_run
from fasttrain.config.schema import ModelConfig, RunConfig
from fasttrain.errors import ConfigError, DataError, Problem
from fasttrain.regular_file import require_regular_file
from fasttrain.report.file_check import is_number
from fasttrain.report.result import cost_usd, duration
from fasttrain.stages import Plan, build_plan
from fasttrain.trainer.check import check_averaging_steps

NUM_GPUS = (1, 8)

# "step, 96 px, batch 2048" as `fasttrain bench step` writes it, perhaps with the name of an arm behind it.
STEP_FIGURE = re.compile(r"(?:step, )?(?P<px>\d{1,9}) px, batch (?P<batch>\d{1,9})(?:, (?P<arm>.+))?")
# What figures can be: the px of a stage (config/schema.py), and rates far beyond both ends of any machine.
PX_BOUNDS = (8, 1024)
RATE_BOUNDS = (1e-3, 1e9)
# Settings of a network that make it another one at the same px and batch.
OF_THE_NETWORK = ("name", "args", "ensemble")

# images/s by px and global batch.
Rates = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class StageTime:
    """What one stage is projected to take on some GPUs.

    Attributes:
        stage: Zero-based row of the stage table.
        px: Training px.
        epochs: Epochs.
        images: Images trained on, those that fill last batches included.
        num_gpus: GPUs.
        rate: images/s of each.
        known: How the rate is known: measured, interpolated or extrapolated.
    """

    stage: int
    px: int
    epochs: int
    images: int
    num_gpus: int
    rate: float
    known: str

    @property
    def seconds(self) -> float:
        return self.images / (self.num_gpus * self.rate)


def rate_at(px: int, rates: Mapping[int, float]) -> tuple[float, str]:
    """images/s at a px, and how it is known.

    Between two measured px the seconds of an image are a straight line in px^2, as the number of its pixels is;
    outside of them they are proportional to px^2.

    Args:
        px: Side of the images, pixels.
        rates: Measured images/s by px; at least one.
    """
    if px in rates:
        return rates[px], "measured"
    below = max((known for known in rates if known < px), default=None)
    above = min((known for known in rates if known > px), default=None)
    if below is None or above is None:
        nearest = above if below is None else below
        assert nearest is not None
        return rates[nearest] * nearest**2 / px**2, f"extrapolated from {nearest} px"
    share = (px**2 - below**2) / (above**2 - below**2)
    seconds = (1 - share) / rates[below] + share / rates[above]
    return 1 / seconds, f"interpolated between {below} and {above} px"


def rates_near(batch_size: int, rates: Rates) -> dict[int, tuple[float, int]]:
    """images/s and batch by px: of each px the rate whose batch is nearest to ``batch_size``, by their ratio."""

    def distance(shape: tuple[int, int]) -> float:
        return abs(math.log(shape[1] / batch_size))

    chosen: dict[int, tuple[float, int]] = {}
    for px, batch in sorted(rates, key=distance):
        chosen.setdefault(px, (rates[px, batch], batch))
    return chosen


def project(plan: Plan, rates: Rates, num_gpus: int = 1) -> list[StageTime]:
    """Each stage's time on some GPUs, each with its share of the batch at the rate of a GPU by itself.

    Args:
        plan: The whole recipe, on one rank.
        rates: Measured images/s of one GPU by px and batch.
        num_gpus: GPUs.
    """
    times = []
    for stage, members in groupby(plan.epochs, key=lambda epoch: epoch.stage):
        epochs = list(members)
        # What a GPU takes at once: its share of the batch, or as much of it as trainer.device_batch_size lets it.
        px, batch = epochs[0].px, max(1, min(epochs[0].batch_size // num_gpus, plan.micro_batch(epochs[0])))
        near = rates_near(batch, rates)
        rate, known = rate_at(px, {measured: rate for measured, (rate, _) in near.items()})
        if px in near and near[px][1] != batch:
            known += f" at batch {near[px][1]:,}"
        images = sum(epoch.images for epoch in epochs)
        times.append(StageTime(stage, px, len(epochs), images, num_gpus, rate, known))
    return times


def project_recipe(config: RunConfig, rates_files: Sequence[Path]) -> str:
    """The table of ``fasttrain report --project``.

    Args:
        config: A run that the rooms have checked; ``report.cost_per_hour`` is that of one GPU.
        rates_files: JSON of ``fasttrain bench step`` on one GPU, or records with the same figures; at least one.

    Raises:
        ConfigError, DataError: Settings that cannot be run; a file without rates, or with another network's; a rate
            that two files have.
    """
    if config.data.num_train is None:
        raise ConfigError(Problem("data.num_train=null: the steps are not known", "data.num_train=1281167"))
    plan = build_plan(
        config.stages,
        num_train=config.data.num_train,
        world_size=1,
        device_batch_size=config.trainer.device_batch_size,
        steps_per_stage=None,
    )
    if problems := check_averaging_steps(config, plan):
        raise ConfigError(problems)
    rates, sources, notes = dict[tuple[int, int], float](), dict[tuple[int, int], Path](), list[str]()
    arms = dict[str, Path]()
    for path in rates_files:
        found, arm = read_rates(path)
        arms[arm] = path
        if len(arms) > 1:
            named = ", ".join(f"{label or 'no arm'} ({file})" for label, file in arms.items())
            raise DataError(Problem(f"rates of several arms: {named}", "give files of one arm"))
        for shape, rate in found.items():
            if shape in rates:
                what = f"{path}: {shape[0]} px, batch {shape[1]} is in {sources[shape]} too"
                raise DataError(Problem(what, "leave one figure of each px and batch in the files"))
            rates[shape], sources[shape] = rate, path
        record = json.loads(path.read_text(encoding="utf-8"))
        _check_network(record, config.model, path)
        # What bench step writes where it was stopped half way.
        cut = "; its benchmark was cut short: not all rates of it are there" if "cut_short" in record else ""
        notes.append(f"rates: {path}, measured on {record.get('hardware', 'unnamed hardware')}{_how(record, arm)}{cut}")
    tables = [project(plan, rates, num_gpus) for num_gpus in NUM_GPUS]
    return "\n".join([projection_text(config.recipe, tables, config.report.cost_per_hour), *notes])


def _how(record: Mapping[str, Any], arm: str) -> str:
    """With which settings the rates were measured: those of the step, not of the images."""
    overrides = record.get("overrides", [])
    words = [arm] if arm else []
    words += (
        [str(word) for word in overrides if not str(word).startswith("data.")] if isinstance(overrides, list) else []
    )
    return f" with {', '.join(words)}" if words else ""


def _check_network(record: Mapping[str, Any], wanted: ModelConfig, path: Path) -> None:
    """Rates of another network say nothing about this one.

    Raises:
        DataError: The record names a recipe whose network is another, or does so in no readable way.
    """
    if "recipe" not in record:
        return
    measured = _measured_network(record, path)
    if measured is None:
        return
    differing = [key for key in OF_THE_NETWORK if getattr(measured, key) != getattr(wanted, key)]
    if differing:
        raise DataError(
            Problem(
                f"{path}: rates of {_network_text(measured, differing)} (recipe={record['recipe']}), but the recipe to "
                f"project trains {_network_text(wanted, differing)}",
                "fasttrain bench step recipe=NAME --json FILE, with the recipe that is projected or one of its network",
            )
        )


def _measured_network(record: Mapping[str, Any], path: Path) -> ModelConfig | None:
    """The network of a record's recipe and overrides; None for a recipe that is not here.

    Raises:
        DataError: They are no text, or the overrides cannot be read.
    """
    recipe, overrides = record["recipe"], record.get("overrides", [])
    if not isinstance(recipe, str) or not isinstance(overrides, list):
        what = f"{path}: recipe={recipe!r} and overrides={overrides!r}: a name and a list of KEY=VALUE were expected"
        raise DataError(Problem(what, 'as fasttrain bench step writes them: "recipe": "NAME", "overrides": []'))
    own = [text for text in map(str, overrides) if text.lstrip("+").startswith("model.")]
    try:
        compose_run([f"recipe={recipe}"])
    except ConfigError:
        return None  # a recipe of another folder: what it trains is not known here
    try:
        return compose_run([f"recipe={recipe}", *own]).config.model
    except ConfigError as error:
        raise DataError([Problem(f"{path}: overrides: {found.what}", found.fix) for found in error.problems]) from error


def _network_text(model: ModelConfig, keys: Sequence[str]) -> str:
    """A network by its name and those of ``keys`` that are beside it."""
    return " ".join([model.name, *(f"model.{key}={getattr(model, key)}" for key in keys if key != "name")])


def read_rates(path: Path) -> tuple[dict[tuple[int, int], float], str]:
    """Median images/s by px and batch of the training step, and the arm that they are of (empty for none).

    Raises:
        DataError: Not such a file; no rates; several for one px and batch; sizes or rates that cannot be.
    """
    try:
        require_regular_file(path)
        figures: Any = json.loads(path.read_text(encoding="utf-8"))["figures"]
        measured = [
            (figure["name"], int(found["px"]), int(found["batch"]), found["arm"] or "", figure["median"])
            for figure in figures
            if figure["unit"] == "images/s" and (found := STEP_FIGURE.fullmatch(figure["name"]))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{path}: cannot be read as figures: {type(error).__name__}: {error}"
        raise DataError(Problem(what, "a file of fasttrain bench step --json FILE")) from error
    if not measured:
        raise DataError(Problem(f'{path}: no figure in images/s is named "step, PX px, batch SIZE"'))
    arms = dict.fromkeys(arm for _, _, _, arm, _ in measured)
    arm = "" if "" in arms else next(iter(arms))
    if arm and len(arms) > 1:
        raise DataError(Problem(f"{path}: rates of several arms: {', '.join(arms)}", "leave one arm in the file"))
    measured = [row for row in measured if row[3] == arm]
    rates: dict[tuple[int, int], float] = {}
    for name, px, batch, _, median in measured:
        _check_figure(path, name, px, batch, median)
        if (px, batch) in rates:
            what = f"{path}: {px} px, batch {batch} has two rates; one was expected"
            raise DataError(Problem(what, "leave one figure of each px and batch in the file"))
        rates[px, batch] = float(median)
    return rates, arm


def _check_figure(path: Path, name: str, px: int, batch: int, median: object) -> None:
    """See that a figure's px, batch and median can be those of a training step.

    Raises:
        DataError: One cannot.
    """
    fix = "measure it again: fasttrain bench step recipe=NAME --json FILE, or take the figure out of the file"
    if not PX_BOUNDS[0] <= px <= PX_BOUNDS[1] or batch < 1:
        what = f"{path}: {name}: expected {PX_BOUNDS[0]} to {PX_BOUNDS[1]} px and a batch of 1 or more"
        raise DataError(Problem(what, fix))
    low, high = RATE_BOUNDS
    if not is_number(median, low, high):
        what = f"{path}: {name}: median {median!r}: expected images/s above 0, from {low:g} to {high:g}"
        raise DataError(Problem(what, fix))


def projection_text(recipe: str, tables: Sequence[Sequence[StageTime]], cost_per_hour: float | None) -> str:
    """The table as text.

    Args:
        recipe: Its name.
        tables: The stages' times for each number of GPUs.
        cost_per_hour: Of one GPU in US dollars, or None.
    """
    lines = [f"{recipe}: projected from measured images/s, not trained"]
    heads = [f"{table[0].num_gpus} GPU" + ("s" if table[0].num_gpus > 1 else "") for table in tables]
    lines.append(f"{'stage':<7}{'epochs':>6}{'px':>6}" + "".join(f"{'images/s each':>15}{head:>10}" for head in heads))
    for row in zip(*tables, strict=True):
        cells = "".join(f"{time.rate:>15,.0f}{duration(time.seconds):>10}" for time in row)
        known = row[0].known
        if any(time.known != known for time in row):
            known = "; ".join(f"{head}: {time.known}" for head, time in zip(heads, row, strict=True))
        lines.append(f"{row[0].stage:<7}{row[0].epochs:>6}{row[0].px:>6}{cells}  {known}")
    seconds = [sum(time.seconds for time in table) for table in tables]
    totals = "".join(f"{duration(total):>25}" for total in seconds)
    lines.append(f"{'all':<7}{sum(time.epochs for time in tables[0]):>6}{'':>6}{totals}")
    if cost_per_hour is not None:
        costs = [
            cost_usd(cost_per_hour * table[0].num_gpus, total) for table, total in zip(tables, seconds, strict=True)
        ]
        lines.append(f"{'cost':<19}" + "".join(f"{f'${cost:.2f}':>25}" for cost in costs))
        lines.append(f"at ${cost_per_hour:g} an hour for each GPU")
    lines.append(
        "Training alone, without validation and checkpoints; several GPUs at the rate of one each with its share of\n"
        "the batch, or the nearest that was measured, which communication does not reach. Between measured px the\n"
        "seconds of an image are a straight line in px^2."
    )
    return "\n".join(lines)
