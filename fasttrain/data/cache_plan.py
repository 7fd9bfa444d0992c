"""What the image cache is to hold: its squares' side, which stages it serves, the shards of the samples.

Imports neither torch nor numpy: the checks that answer at once read it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fasttrain.config.schema import RunConfig, StageConfig

# Shards where data.num_shards is null: any number of ranks up to eight that is a power of two can own its samples.
USUAL_SHARDS = (8, 4, 2, 1)

# Largest training px over cache_px: at 1 a crop of the whole image is never enlarged. A stage beyond it would be
# blurred throughout, so it decodes from the files.
MAX_PX_OVER_CACHE = 1.0

# Where data.cache_px is null: the squares are made for the lowest px that together train this share of the epochs;
# the few epochs of high px that a progressive run ends with would make the cache several times larger for a single
# use of each image ...
SERVED_EPOCHS_FRAC = 0.75
# ... and they are so large that no crop of these stages is enlarged: a crop shows as little of the image as the
# stage's min_area. Squares of 160 px, small crops of which were blurred, cost Imagenette about a point of accuracy at
# 128 px and min_area 0.35.
CACHE_PX_MULTIPLE = 8
# Where all squares would take more than these bytes, they are at most so much larger than the stages' px: 160 for
# stages up to 128 px, what fast.ai's ImageNet entries resized their files to (github.com/fastai/imagenet-fast), 98 GB.
SHARP_CACHE_BYTES = 40 * 10**9
CACHE_PX_OVER_SERVED = 1.25
# The largest that data.cache_px may be.
MAX_CACHE_PX = 1024


def num_shards(config: RunConfig) -> int:
    """Shards of the training samples: ``data.num_shards``, or the most of ``USUAL_SHARDS`` that fit every batch."""
    if config.data.num_shards is not None:
        return config.data.num_shards
    batches = [stage.batch_size for stage in config.stages]
    return next(shards for shards in USUAL_SHARDS if all(batch % shards == 0 for batch in batches))


def cache_px(config: RunConfig, num_train: int | None = None) -> int:
    """Side of the cached squares, pixels: ``data.cache_px``, or what the stages of low px need.

    Args:
        config: The run.
        num_train: Training images; None for ``data.num_train``, and where that is null too, few.
    """
    data = config.data
    if data.cache_px is not None:
        return data.cache_px
    served = _largest_served(config.stages)
    stages = [stage for stage in config.stages if stage.px <= served]
    # A padded crop shows all of the image.
    areas = [stage.min_area if data.crop == "random_resized" else 1.0 for stage in stages]
    sharp = _rounded(max(stage.px / math.sqrt(area) for stage, area in zip(stages, areas, strict=True)))
    sharp = max(served, min(sharp, MAX_CACHE_PX))
    if (num_train or data.num_train or 0) * sharp**2 * 3 <= SHARP_CACHE_BYTES:
        return sharp
    return min(sharp, _rounded(served * CACHE_PX_OVER_SERVED))


def caches(config: RunConfig) -> bool:
    """Whether training images are kept once they are decoded; those of ``data.augment`` are made anew each time."""
    return config.data.cache != "off" and config.data.augment == "none"


def serves(cached_px: int, px: int) -> bool:
    """Whether a stage of ``px`` trains on crops of squares of ``cached_px``; else it decodes from the files."""
    return px <= cached_px * MAX_PX_OVER_CACHE


def _rounded(px: float) -> int:
    return math.ceil(px / CACHE_PX_MULTIPLE) * CACHE_PX_MULTIPLE


def _largest_served(stages: Sequence[StageConfig]) -> int:
    epochs = sum(stage.epochs for stage in stages)
    counted = 0
    for stage in sorted(stages, key=lambda stage: stage.px):
        counted += stage.epochs
        if counted >= SERVED_EPOCHS_FRAC * epochs:
            return stage.px
    raise ValueError("no stages")
