"""Trainings on files: which epochs only fill caches, and how short the others are. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fasttrain.config.schema import DataConfig, RunConfig
from fasttrain.data.cache_plan import cache_px, caches, serves
from fasttrain.data.scan import Scan
from fasttrain.stages import EpochPlan, Plan

if TYPE_CHECKING:
    from fasttrain.bench.arms import Shape

# A bound on the steps of a stage that no epoch reaches: the stage is one whole epoch.
WHOLE_EPOCH = 1 << 40


def served_px(config: RunConfig, sides: Collection[int], images: Scan | None) -> frozenset[int]:
    """Training px of a run whose images come from its cache once that is full.

    Args:
        config: The run as the user gave it.
        sides: What is trained, pixels.
        images: Of the run; None where they are not known yet, and no px counts as served.
    """
    if images is None or images.source != "scan" or not caches(config):
        return frozenset()
    if images.train.images is not None:
        return frozenset(sides)
    side = cache_px(config, images.num_train)
    return frozenset(px for px in sides if serves(side, px))


def with_own_cache(config: RunConfig, images: Scan | None) -> DataConfig:
    """The data of a run with the side of its cache written down: the stages of a short run would ask for another."""
    if images is None or images.train.images is not None or not caches(config):
        return config.data
    return replace(config.data, cache_px=cache_px(config, images.num_train))


def file_rows(shapes: Sequence[Shape], *, repeats: int, served: Collection[int]) -> tuple[list[Shape], frozenset[int]]:
    """The rows of the stage table that measure shapes on files, and which of them are fills, zero-based.

    The cache is filled once, at the first px that it serves. A px that is decoded from the files has a fill of its
    own: it brings the files into the page cache, and the decoder's buffers to their size.

    Args:
        shapes: In order.
        repeats: Measurements of each.
        served: Px that come from the cache.
    """
    rows: list[Shape] = []
    fills: set[int] = set()
    cache_is_full = False
    for shape in shapes:
        from_cache = shape.px in served
        if not (from_cache and cache_is_full):
            fills.add(len(rows))
            rows.append(shape)
        cache_is_full = cache_is_full or from_cache
        rows += [shape] * repeats
    return rows, frozenset(fills)


def cut_epochs(plan: Plan, steps: int, *, fills: Collection[int]) -> Plan:
    """The plan with at most ``steps`` steps in each epoch, but for those of the stages ``fills``."""
    epochs: list[EpochPlan] = []
    first_step = 0
    for epoch in plan.epochs:
        taken = epoch.steps if epoch.stage in fills else min(epoch.steps, steps)
        epochs.append(replace(epoch, steps=taken, first_step=first_step))
        first_step += taken
    return replace(plan, epochs=tuple(epochs))
