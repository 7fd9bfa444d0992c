"""The time of a recipe from the rates of its stages, by hand."""

from __future__ import annotations

import pytest

from fasttrain.bench.arms import Shape, choose_shapes
from fasttrain.bench.stage_times import stage_times
from fasttrain.bench.step import split_repeats
from fasttrain.config.schema import StageConfig
from fasttrain.stages import build_plan

STAGES = [
    StageConfig(epochs=3, px=96, min_area=0.25, batch_size=100, val_px=128),
    StageConfig(epochs=1, px=224, min_area=0.25, batch_size=50, val_px=224),
]


def test_seconds_of_each_stage() -> None:
    plan = build_plan(STAGES, num_train=950, world_size=1, device_batch_size=None, steps_per_stage=None)
    first, second = stage_times(plan, {(96, 100): 500.0, (224, 50): 100.0})
    # 3 epochs of 10 steps of 100 images; 1 epoch of 19 steps of 50.
    assert (first.stage, first.px, first.epochs, first.steps, first.seconds) == (0, 96, 3, 30, 6.0)
    assert (second.stage, second.px, second.epochs, second.steps, second.seconds) == (1, 224, 1, 19, 9.5)


@pytest.mark.parametrize(
    ("px", "batch_size", "shapes"),
    [
        (None, None, [(96, 100), (224, 50)]),
        (None, 64, [(96, 64), (224, 64)]),
        ((224, 128), None, [(224, 50), (128, 100)]),
        ((128,), 32, [(128, 32)]),
    ],
)
def test_what_is_measured(px: tuple[int, ...] | None, batch_size: int | None, shapes: list[tuple[int, int]]) -> None:
    assert choose_shapes(STAGES, px=px, batch_size=batch_size) == tuple(Shape(*shape) for shape in shapes)


@pytest.mark.parametrize(
    ("repeats", "rounds", "parts"), [(5, 2, [3, 2]), (4, 2, [2, 2]), (5, 1, [5]), (1, 2, [1]), (3, 3, [1, 1, 1])]
)
def test_rounds_share_the_repeats(repeats: int, rounds: int, parts: list[int]) -> None:
    assert split_repeats(repeats, rounds) == parts
