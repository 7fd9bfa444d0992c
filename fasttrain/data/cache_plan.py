"""What the image cache is to hold: its squares' side, which stages it serves, the shards of the samples.

Imports neither torch nor numpy: the checks that answer at once read it too.
"""

from __future__ import annotations

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
# ... and they are this much larger than that px, since a crop shows a part of the image: 160 for stages up to 128 px,
# what fast.ai's ImageNet entries resized their files to (github.com/fastai/imagenet-fast).
CACHE_PX_OVER_SERVED = 1.25
CACHE_PX_MULTIPLE = 8


def num_shards(config: RunConfig) -> int:
    """Shards of the training samples: ``data.num_shards``, or the most of ``USUAL_SHARDS`` that fit every batch."""
    if config.data.num_shards is not None:
        return config.data.num_shards
    batches = [stage.batch_size for stage in config.stages]
    return next(shards for shards in USUAL_SHARDS if all(batch % shards == 0 for batch in batches))


def cache_px(config: RunConfig) -> int:
    """Side of the cached squares, pixels: ``data.cache_px``, or what the stages of low px need."""
    if config.data.cache_px is not None:
        return config.data.cache_px
    wanted = _largest_served(config.stages) * CACHE_PX_OVER_SERVED
    return -int(-wanted // CACHE_PX_MULTIPLE) * CACHE_PX_MULTIPLE


def serves(cached_px: int, px: int) -> bool:
    """Whether a stage of ``px`` trains on crops of squares of ``cached_px``; else it decodes from the files."""
    return px <= cached_px * MAX_PX_OVER_CACHE


def _largest_served(stages: Sequence[StageConfig]) -> int:
    epochs = sum(stage.epochs for stage in stages)
    counted = 0
    for stage in sorted(stages, key=lambda stage: stage.px):
        counted += stage.epochs
        if counted >= SERVED_EPOCHS_FRAC * epochs:
            return stage.px
    raise ValueError("no stages")
