"""Boxes, flips and shifts of crops from cached images: those of ``augment``, drawn on the device where it can."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.config.schema import RunConfig
from fasttrain.data.augment import Crop, RandomResizedCrop, draw_flips, draw_shifts
from fasttrain.data.batch import to_device
from fasttrain.data.crop import Draws
from fasttrain.data.preprocess import CentreCrop
from fasttrain.stages import EpochPlan


@dataclass(frozen=True, eq=False)
class HostDraws:
    """``Draws`` before they are on the device: boxes float32 [n, 4], moves int32 [n, 4]."""

    boxes: NDArray[np.float32]
    moves: NDArray[np.int32]


class Drawer:
    """Draws for the samples of an epoch or a batch.

    A sample's draw is a function of (seed, epoch, sample), whichever way it is made; a run stays with one way.

    Args:
        config: The run.
        cached_size: Height and width of the cached images, pixels.
        device: That crops are made on.
        has_kernel: Whether random boxes are drawn there too.
    """

    def __init__(
        self, config: RunConfig, cached_size: tuple[int, int], device: torch.device, *, has_kernel: bool
    ) -> None:
        self._config, self._cached_size, self._device = config, cached_size, device
        self._on_device = has_kernel and config.data.crop == "random_resized"

    def on_host(self, epoch: EpochPlan, samples: NDArray[np.int64], sizes: NDArray[np.int32]) -> HostDraws | None:
        """The host's part of ``draw``, which may be done ahead; None where the device draws.

        Args:
            epoch: Of the plan.
            samples: Indices in the training split, int64 [n].
            sizes: Heights and widths of the images before they were cached, int32 [n, 2].
        """
        if self._on_device:
            return None
        data, drawn = self._config.data, (self._config.seed, epoch.recipe_epoch, samples)
        crop: Crop
        if data.crop == "random_resized":
            crop = RandomResizedCrop.draw(*drawn, min_area=epoch.min_area)
        else:
            crop = CentreCrop(epoch.px, epoch.px, 1.0)
        boxes = crop.boxes(sizes.astype(np.int64))
        boxes[:, 2:] -= boxes[:, :2]
        boxes = boxes * np.tile(self._cached_size, 2) / np.tile(sizes, 2)
        moves = np.zeros((len(samples), 4), dtype=np.int32)
        moves[:, 0] = draw_flips(*drawn, kind=data.flip)
        if data.crop == "padded" and data.pad_px:
            moves[:, 1:3] = draw_shifts(*drawn, pad_px=data.pad_px)
        return HostDraws(boxes.astype(np.float32), moves)

    def draw(
        self,
        epoch: EpochPlan,
        samples: NDArray[np.int64],
        sizes: NDArray[np.int32],
        host: HostDraws | None = None,
    ) -> Draws:
        """Draws on the device.

        Args:
            epoch, samples, sizes: As in ``on_host``.
            host: What that gave, where it was asked ahead.
        """
        if not self._on_device:
            made = host or self.on_host(epoch, samples, sizes)
            assert made is not None
            return Draws(to_device(made.boxes, self._device), to_device(made.moves, self._device))
        from fasttrain.data import crop_kernel

        boxes, moves = crop_kernel.draw(
            self._config.seed,
            epoch.recipe_epoch,
            to_device(samples, self._device),
            to_device(sizes, self._device),
            min_area=epoch.min_area,
            flip=self._config.data.flip,
            cached_size=self._cached_size,
        )
        return Draws(boxes, moves)
