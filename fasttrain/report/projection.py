"""Time and cost of a recipe that nobody has run, from measured images/s: projected, and called so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fasttrain.config.compose import compose_run
from fasttrain.errors import ConfigError, DataError, Problem
from fasttrain.regular_file import require_regular_file
from fasttrain.report.result import cost_usd, duration
from fasttrain.stages import Plan, build_plan

NUM_GPUS = (1, 8)

# "step, 96 px, batch 2048" as `fasttrain bench step` writes it, perhaps with the name of an arm behind it.
STEP_FIGURE = re.compile(r"(?:step, )?(?P<px>\d+) px, batch \d+(?:, (?P<arm>.+))?")


@dataclass(frozen=True)
class StageTime:
    """What one stage is projected to take on one GPU.

    Attributes:
        stage: Zero-based row of the stage table.
        px: Training px.
        epochs: Epochs.
        images: Images trained on, those that fill last batches included.
        rate: images/s.
        known: How the rate is known: measured, interpolated or extrapolated.
    """

    stage: int
    px: int
    epochs: int
    images: int
    rate: float
    known: str

    @property
    def seconds(self) -> float:
        return self.images / self.rate


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


def project(plan: Plan, rates: Mapping[int, float]) -> list[StageTime]:
    """Each stage's time on one GPU.

    Args:
        plan: The whole recipe.
        rates: Measured images/s of one GPU by px.
    """
    times = []
    for stage, members in groupby(plan.epochs, key=lambda epoch: epoch.stage):
        epochs = list(members)
        rate, known = rate_at(epochs[0].px, rates)
        images = sum(epoch.images for epoch in epochs)
        times.append(StageTime(stage, epochs[0].px, len(epochs), images, rate, known))
    return times


def project_recipe(overrides: Sequence[str], rates_file: Path) -> str:
    """The table of ``fasttrain report --project``.

    Args:
        overrides: A run's settings, ``recipe=NAME`` among them; ``report.cost_per_hour`` is that of one GPU.
        rates_file: JSON of ``fasttrain bench step`` on one GPU, or a record with the same figures.

    Raises:
        ConfigError, DataError: Settings that cannot be run; a file without rates.
    """
    config = compose_run(list(overrides)).config
    if config.data.num_train is None:
        raise ConfigError(Problem("data.num_train=null: the steps are not known", "data.num_train=1281167"))
    plan = build_plan(
        config.stages,
        num_train=config.data.num_train,
        world_size=1,
        device_batch_size=config.trainer.device_batch_size,
        steps_per_stage=None,
    )
    rates = read_rates(rates_file)
    record = json.loads(rates_file.read_text(encoding="utf-8"))
    _check_network(record, config.model.name, rates_file)
    table = projection_text(config.recipe, project(plan, rates), config.report.cost_per_hour)
    # What bench step writes where it was stopped half way.
    cut = "; its benchmark was cut short: not all rates of it are there" if "cut_short" in record else ""
    return f"{table}\nrates: {rates_file}, measured on {record.get('hardware', 'unnamed hardware')}{cut}"


def _check_network(record: Mapping[str, Any], wanted: str, path: Path) -> None:
    """Rates of another network say nothing about this one.

    Raises:
        DataError: The record names a recipe whose network is another.
    """
    if "recipe" not in record:
        return
    own = [text for text in record.get("overrides", ()) if str(text).startswith("model.")]
    try:
        measured = compose_run([f"recipe={record['recipe']}", *own]).config.model.name
    except ConfigError:
        return  # a recipe of another folder: what it trains is not known here
    if measured != wanted:
        raise DataError(
            Problem(
                f"{path}: rates of {measured} (recipe={record['recipe']}), but the recipe to project trains {wanted}",
                "fasttrain bench step recipe=NAME --json FILE, with the recipe that is projected or one of its network",
            )
        )


def read_rates(path: Path) -> dict[int, float]:
    """Median images/s by px of the training step.

    Raises:
        DataError: Not such a file; no rates; several for one px.
    """
    try:
        require_regular_file(path)
        figures: Any = json.loads(path.read_text(encoding="utf-8"))["figures"]
        measured = [
            (found["px"], found["arm"] or "", float(figure["median"]))
            for figure in figures
            if figure["unit"] == "images/s" and (found := STEP_FIGURE.fullmatch(figure["name"]))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{path}: cannot be read as figures: {type(error).__name__}: {error}"
        raise DataError(Problem(what, "a file of fasttrain bench step --json FILE")) from error
    if not measured:
        raise DataError(Problem(f'{path}: no figure in images/s is named "step, PX px, batch SIZE"'))
    arms = dict.fromkeys(arm for _, arm, _ in measured)
    if "" in arms:
        measured = [row for row in measured if not row[1]]
    elif len(arms) > 1:
        raise DataError(Problem(f"{path}: rates of several arms: {', '.join(arms)}", "leave one arm in the file"))
    rates: dict[int, float] = {}
    for px, _, rate in measured:
        if int(px) in rates or not rate > 0:
            raise DataError(Problem(f"{path}: {px} px has two rates, or none above 0; one was expected"))
        rates[int(px)] = rate
    return rates


def projection_text(recipe: str, times: Sequence[StageTime], cost_per_hour: float | None) -> str:
    """The table as text; ``cost_per_hour`` of one GPU in US dollars, or None."""
    lines = [
        f"{recipe}: projected from measured images/s, not trained",
        f"{'stage':<7}{'epochs':>6}{'px':>6}{'images/s':>10}" + "".join(f"{f'{n} GPU':>12}" for n in NUM_GPUS),
    ]
    for time in times:
        cells = "".join(f"{duration(time.seconds / n):>12}" for n in NUM_GPUS)
        lines.append(f"{time.stage:<7}{time.epochs:>6}{time.px:>6}{time.rate:>10,.0f}{cells}  {time.known}")
    seconds = sum(time.seconds for time in times)
    totals = "".join(f"{duration(seconds / n):>12}" for n in NUM_GPUS)
    lines.append(f"{'all':<7}{sum(time.epochs for time in times):>6}{'':>16}{totals}")
    cost = cost_usd(cost_per_hour, seconds)
    if cost is not None:
        lines.append(f"{'cost':<29}" + "".join(f"{f'${cost:.2f}':>12}" for _ in NUM_GPUS))
        lines.append(f"at ${cost_per_hour:g} an hour for each GPU")
    lines.append(
        "Training alone, without validation and checkpoints; several GPUs at the rate of one each, which smaller\n"
        "parts of the batch and communication do not reach. Between measured px the seconds of an image are a\n"
        "straight line in px^2."
    )
    return "\n".join(lines)
