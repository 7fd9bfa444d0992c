"""Training augmentation as a pure function of (seed, epoch, sample), the same for every back end.

Crop boxes, flips and shifts are drawn here and handed to whatever decodes; no back end has random numbers of
its own. So a sample looks the same on any rank, after any resume, and with DALI or without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

# Tries before a random crop falls back to the centre; torchvision, RandomResizedCrop.get_params.
CROP_TRIES = 10
MIN_RATIO, MAX_RATIO = 3 / 4, 4 / 3  # width over height, torchvision's RandomResizedCrop

# Each kind of draw has its own numbers, so that a flip never tells the crop.
CROP_STREAM, FLIP_STREAM, SHIFT_STREAM = 0, 1, 2
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's step from number to number


class Crop(Protocol):
    """What part of each image of a batch is resampled to the output."""

    def boxes(self, sizes: NDArray[np.int64], part: slice = slice(None)) -> NDArray[np.float64]:
        """Boxes of the batch's images ``part``.

        Args:
            sizes: Heights and widths of those images, pixels, int64 [n, 2].
            part: Which images of the batch they are.

        Returns:
            Top, left, bottom, right in pixels of the image, float64 [n, 4]; inside the image, not empty.
        """
        ...


def uniforms(seed: int, epoch: int, samples: NDArray[np.int64], num_draws: int, *, stream: int) -> NDArray[np.float64]:
    """Random numbers in [0, 1), a pure function of all arguments.

    Args:
        seed, epoch: Of the run.
        samples: Indices in the training split, int64 [n].
        num_draws: Numbers for each sample.
        stream: What the numbers are for.

    Returns:
        float64 [n, num_draws].

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
    OOPSLA 2014) as a hash of the counter.
    """
    with np.errstate(over="ignore"):
        rows = _mix(stream_key(seed, stream, epoch) + GOLDEN * samples.astype(np.uint64))
        bits = _mix(rows[:, None] + GOLDEN * np.arange(1, num_draws + 1, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def stream_key(seed: int, stream: int, epoch: int) -> np.uint64:
    """Where the numbers of one kind of draw begin in one epoch, a hash of all three."""
    key = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in (seed, stream, epoch):
            key = _mix(key + GOLDEN * np.uint64(part + 1))
    return np.uint64(key[0])


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class RandomResizedCrop:
    """Boxes of random area and aspect ratio, as torchvision's RandomResizedCrop distributes them.

    Of ten drawn sizes the first that fits the image counts; none fits: the centre, with its ratio limited.

    Attributes:
        widths, heights: Drawn sides over the root of the image's area, float64 [n, CROP_TRIES].
        places: Where the box lies in the room that is left, down and across, 0..1, float64 [n, 2].
    """

    widths: NDArray[np.float64]
    heights: NDArray[np.float64]
    places: NDArray[np.float64]

    @classmethod
    def draw(cls, seed: int, epoch: int, samples: NDArray[np.int64], *, min_area: float) -> RandomResizedCrop:
        """Draw for a batch.

        Args:
            seed, epoch: Of the run.
            samples: Indices in the training split, int64 [n].
            min_area: Smallest box as a share of the image's area; the largest is the whole.
        """
        draws = uniforms(seed, epoch, samples, 2 * CROP_TRIES + 2, stream=CROP_STREAM)
        area = min_area + (1 - min_area) * draws[:, :CROP_TRIES]
        log_ratio = np.log(MIN_RATIO) + np.log(MAX_RATIO / MIN_RATIO) * draws[:, CROP_TRIES : 2 * CROP_TRIES]
        ratio = np.exp(log_ratio)
        return cls(np.sqrt(area * ratio), np.sqrt(area / ratio), draws[:, 2 * CROP_TRIES :])

    def boxes(self, sizes: NDArray[np.int64], part: slice = slice(None)) -> NDArray[np.float64]:
        """See ``Crop``; whole pixels."""
        height, width = sizes[:, :1].astype(np.float64), sizes[:, 1:].astype(np.float64)
        side = np.sqrt(height * width)
        tried_widths = np.maximum(np.rint(self.widths[part] * side), 1)
        tried_heights = np.maximum(np.rint(self.heights[part] * side), 1)
        fits = (tried_widths <= width) & (tried_heights <= height)
        first = fits.argmax(axis=1)[:, None]
        none = ~fits.any(axis=1, keepdims=True)
        box_width = np.where(
            none,
            np.minimum(width, np.maximum(np.rint(height * MAX_RATIO), 1)),
            np.take_along_axis(tried_widths, first, axis=1),
        )
        box_height = np.where(
            none,
            np.minimum(height, np.maximum(np.rint(width / MIN_RATIO), 1)),
            np.take_along_axis(tried_heights, first, axis=1),
        )
        places = self.places[part]
        top = np.where(none, (height - box_height) // 2, np.floor(places[:, :1] * (height - box_height + 1)))
        left = np.where(none, (width - box_width) // 2, np.floor(places[:, 1:] * (width - box_width + 1)))
        return np.concatenate([top, left, top + box_height, left + box_width], axis=1)


def draw_flips(seed: int, epoch: int, samples: NDArray[np.int64], *, kind: str) -> NDArray[np.bool_]:
    """Which images are mirrored.

    Args:
        seed, epoch: Of the run.
        samples: Indices in the training split, int64 [n].
        kind: ``random``: each epoch a fair coin for each image; ``alternating``: a fair coin in the first
            epoch, then the other way round every epoch (arXiv:2404.00498); ``none``.

    Returns:
        bool [n].
    """
    if kind == "none":
        return np.zeros(len(samples), dtype=np.bool_)
    if kind == "random":
        return uniforms(seed, epoch, samples, 1, stream=FLIP_STREAM)[:, 0] < 0.5
    first = uniforms(seed, 0, samples, 1, stream=FLIP_STREAM)[:, 0] < 0.5
    return first ^ (epoch % 2 == 1)


def draw_shifts(seed: int, epoch: int, samples: NDArray[np.int64], *, pad_px: int) -> NDArray[np.int64]:
    """How far each image is moved, down and across.

    Args:
        seed, epoch: Of the run.
        samples: Indices in the training split, int64 [n].
        pad_px: Farthest, pixels of the output.

    Returns:
        int64 [n, 2], each -pad_px .. pad_px.
    """
    draws = uniforms(seed, epoch, samples, 2, stream=SHIFT_STREAM)
    return np.floor(draws * (2 * pad_px + 1)).astype(np.int64) - pad_px


def flip_images(images_nhwc: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
    """Mirror the images for which ``flips`` (bool [n]) is true, left to right."""
    return torch.where(flips[:, None, None, None], images_nhwc.flip(2), images_nhwc)


def shift_images(images_nhwc: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Move each image over a border that mirrors it (the edge itself not repeated).

    Args:
        images_nhwc: [n, h, w, c].
        shifts: int64 [n, 2] on the same device, down and across, each smaller than the side.
    """
    _, height, width, _ = images_nhwc.shape
    rows = _mirrored(torch.arange(height, device=shifts.device) - shifts[:, :1], height)
    columns = _mirrored(torch.arange(width, device=shifts.device) - shifts[:, 1:], width)
    batch = torch.arange(len(shifts), device=shifts.device)
    return images_nhwc[batch[:, None, None], rows[:, :, None], columns[:, None, :]]


def _mirrored(index: torch.Tensor, size: int) -> torch.Tensor:
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)
