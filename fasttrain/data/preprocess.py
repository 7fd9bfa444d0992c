"""The one description of how an image becomes the network's input: validation, export and inference share it.

Resize the short side to ``round(px / val_crop_frac)`` with antialiased bilinear interpolation, crop the
centre, scale to 0..1, subtract the mean, divide by the standard deviation: what torchvision's ``Resize`` and
``CenterCrop`` do on a PIL image, within two of 255 levels. EXIF orientation is ignored, as torchvision ignores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.config.schema import RunConfig


@dataclass(frozen=True)
class CentreCrop:
    """The box whose resampling equals resizing an image and cropping its centre.

    Attributes:
        height, width: Of the output, pixels.
        crop_frac: Output over resized image, along the side that limits: for a square output the short one.
            1 keeps all of that side.
    """

    height: int
    width: int
    crop_frac: float

    def resized(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Heights and widths of the resized images, int64 [n, 2]: the smallest that hold output / crop_frac.

        Args:
            sizes: Heights and widths of the images, pixels, int64 [n, 2].
        """
        least_height, least_width = (round(side / self.crop_frac) for side in (self.height, self.width))
        heights, widths = sizes[:, 0], sizes[:, 1]
        # Rounding the other side down is torchvision's rule.
        by_height = np.stack([np.full_like(heights, least_height), least_height * widths // heights], axis=1)
        by_width = np.stack([least_width * heights // widths, np.full_like(widths, least_width)], axis=1)
        return np.where((least_height * widths >= least_width * heights)[:, None], by_height, by_width)

    def boxes(self, sizes: NDArray[np.int64], part: slice = slice(None)) -> NDArray[np.float64]:
        """See ``augment.Crop``; not rounded to whole pixels."""
        resized = self.resized(sizes)
        output = np.array([self.height, self.width])
        scale = sizes / resized
        top_left = np.rint((resized - output) / 2)
        # Rounding must not put a box a hair outside of its image.
        bottom_right = np.minimum((top_left + output) * scale, sizes)
        return np.concatenate([top_left * scale, bottom_right], axis=1)


class Normalize(torch.nn.Module):
    """Pixels to the network's input, on whatever device they are.

    Args:
        mean, std: Of each channel, of pixels in 0..1.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # Not in the state dict: they are part of the preprocessing description, not weights.
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32) * 255, persistent=False)

    def forward(self, images_nhwc: torch.Tensor) -> torch.Tensor:
        """uint8 [n, h, w, 3] to float32 [n, 3, h, w] in channels_last memory.

        Floating-point images are normalised already; they only change their layout.
        """
        if images_nhwc.is_floating_point():
            return images_nhwc.permute(0, 3, 1, 2)
        return ((images_nhwc.to(torch.float32) - self.mean) / self.std).permute(0, 3, 1, 2)


def preprocessing_description(config: RunConfig) -> dict[str, Any]:
    """What a checkpoint says about the input of its network: plain types only.

    ``px`` and ``rectangular`` are those of the last stage's validation, the ones whose accuracy counts.
    """
    last = config.stages[-1]
    return {
        "px": last.val_px,
        "rectangular": last.rectangular_val,
        "resize_px": round(last.val_px / config.data.val_crop_frac),
        "crop_frac": config.data.val_crop_frac,
        "interpolation": "bilinear",
        "antialias": True,
        "exif_orientation": "ignored",
        "colour": "RGB",
        "mean": [float(value) for value in config.data.mean],
        "std": [float(value) for value in config.data.std],
    }
