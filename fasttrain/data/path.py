"""The data path of one rank: which images, in which order, with which labels; a back end makes the pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.config.schema import RunConfig
from fasttrain.data.augment import (
    Crop,
    RandomResizedCrop,
    draw_flips,
    draw_shifts,
    shift_images,
)
from fasttrain.data.backend import Backend, Request
from fasttrain.data.backend_choice import start_backend
from fasttrain.data.batch import Batch
from fasttrain.data.decode import image_sizes
from fasttrain.data.order import epoch_order, micro_batches, step_indices
from fasttrain.data.preprocess import CentreCrop
from fasttrain.data.scan import Scan
from fasttrain.data.validation import ValBatch, plan_validation, val_batch_size
from fasttrain.stages import EpochPlan, Plan


class Batches(Protocol):
    """The validation batches of one rank; can be gone through any number of times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


class DataPath(Protocol):
    """What the trainer asks for images.

    Attributes:
        backend: Makes the pixels.
    """

    backend: Backend

    def train_epoch(self, epoch: EpochPlan, *, first_step_in_epoch: int = 0) -> Iterator[list[Batch]]:
        """One item for each optimizer step: this rank's micro-batches.

        May be left at any step and asked for again; nothing of the one that was left shows up later.

        Args:
            epoch: Of the plan.
            first_step_in_epoch: Where a resumed run goes on.
        """
        ...

    def train_dtype(self, epoch: EpochPlan) -> torch.dtype:
        """Of the images that ``train_epoch`` gives: uint8, or the compute type where they are normalised."""
        ...

    def val_batches(self, px: int, *, rectangular: bool = False) -> Batches:
        """All validation images once over all ranks, as counted by ``num_valid``.

        Number and shapes of the batches are the same on all ranks.

        Args:
            px: Side of the images, with ``rectangular`` the short one.
            rectangular: Keep the aspect ratio of each batch of similar images.
        """
        ...

    def val_shapes(self, px: int, *, rectangular: bool = False) -> list[tuple[int, int, int]]:
        """Images, height and width of each batch of ``val_batches``, to warm up with."""
        ...

    def first_train_images(self, num_images: int, px: int) -> torch.Tensor:
        """The training images with the lowest indices, without augmentation, the same on every rank.

        Args:
            num_images: How many; at most as many as there are.
            px: Side of the images.

        Returns:
            [num_images, px, px, 3], as in ``Batch.images_nhwc``.
        """
        ...

    def close(self) -> None:
        """Give back threads, memory and files."""
        ...


class ImageDataPath:
    """The one ``DataPath``: from the plan and the scan to batches, through any back end.

    Args:
        config: The run.
        scan: What there is.
        plan: What is asked for.
        backend: Makes the pixels.
        device: Where batches lie.
        rank, world_size: Of this process.
    """

    def __init__(
        self,
        config: RunConfig,
        scan: Scan,
        plan: Plan,
        backend: Backend,
        *,
        device: torch.device,
        rank: int,
        world_size: int,
    ) -> None:
        self.backend = backend
        self._config, self._plan, self._device = config, plan, device
        self._rank, self._world_size = rank, world_size
        self._train, self._val = scan.train, scan.val
        self._num_train, self._num_val = scan.num_train, scan.num_val
        self._train_labels, self._val_labels = scan.train.labels, scan.val.labels
        if scan.source == "expected":
            random = np.random.default_rng(config.seed)
            self._train_labels = random.integers(scan.num_classes, size=scan.num_train)
            self._val_labels = random.integers(scan.num_classes, size=scan.num_val)
        self._val_plans: dict[tuple[int, bool], list[ValBatch]] = {}

    def train_epoch(self, epoch: EpochPlan, *, first_step_in_epoch: int = 0) -> Iterator[list[Batch]]:
        """See ``DataPath``."""
        order = epoch_order(self._num_train, self._config.seed, epoch.recipe_epoch)
        steps = range(first_step_in_epoch, epoch.steps)
        requests = (self._train_request(epoch, rows) for step in steps for rows in self._share(order, epoch, step))
        decoded = self.backend.images(requests)
        for _ in steps:
            yield [self._train_batch(epoch, *next(decoded)) for _ in range(epoch.accumulate)]

    def train_dtype(self, epoch: EpochPlan) -> torch.dtype:
        """See ``DataPath``."""
        return torch.uint8

    def val_batches(self, px: int, *, rectangular: bool = False) -> Batches:
        """See ``DataPath``."""
        return _ValBatches(self._val_plan(px, rectangular), self._decode_validation)

    def val_shapes(self, px: int, *, rectangular: bool = False) -> list[tuple[int, int, int]]:
        """See ``DataPath``."""
        return [(len(b.rows), b.height, b.width) for b in self._val_plan(px, rectangular)]

    def first_train_images(self, num_images: int, px: int) -> torch.Tensor:
        """See ``DataPath``."""
        request = Request(self._train, np.arange(num_images), px, px, CentreCrop(px, px, 1.0))
        ((_, images_nhwc),) = self.backend.images([request])
        return images_nhwc

    def close(self) -> None:
        """See ``DataPath``."""
        self.backend.close()

    def _share(self, order: NDArray[np.int64], epoch: EpochPlan, step: int) -> list[NDArray[np.int64]]:
        return micro_batches(
            step_indices(order, step, epoch.batch_size),
            rank=self._rank,
            world_size=self._world_size,
            accumulate=epoch.accumulate,
        )

    def _train_request(self, epoch: EpochPlan, rows: NDArray[np.int64]) -> Request:
        data, drawn = self._config.data, (self._config.seed, epoch.recipe_epoch, rows)
        crop: Crop
        if data.crop == "random_resized":
            crop = RandomResizedCrop.draw(*drawn, min_area=epoch.min_area)
        else:
            # The whole centre; it is shifted once it has its size.
            crop = CentreCrop(epoch.px, epoch.px, 1.0)
        flips = None if data.flip == "none" else draw_flips(*drawn, kind=data.flip)
        return Request(self._train, rows, epoch.px, epoch.px, crop, flips)

    def _train_batch(self, epoch: EpochPlan, request: Request, images: torch.Tensor) -> Batch:
        data, rows = self._config.data, request.rows
        if data.crop == "padded" and data.pad_px and self.backend.name != "synthetic":
            shifts = draw_shifts(self._config.seed, epoch.recipe_epoch, rows, pad_px=data.pad_px)
            images = shift_images(images, self._to_device(shifts))
        return Batch(images, self._to_device(self._train_labels[rows]), len(rows))

    def _val_plan(self, px: int, rectangular: bool) -> list[ValBatch]:
        # Arrays and random pixels are square: there is no ratio to keep.
        rectangular = rectangular and bool(self._val.paths)
        if (px, rectangular) not in self._val_plans:
            self._val_plans[px, rectangular] = plan_validation(
                self._num_val,
                px,
                batch_size=val_batch_size(self._plan, px, num_val=self._num_val, world_size=self._world_size),
                rank=self._rank,
                world_size=self._world_size,
                sizes=image_sizes(self._val) if rectangular else None,
            )
        return self._val_plans[px, rectangular]

    def _decode_validation(self, batches: list[ValBatch]) -> Iterator[Batch]:
        frac = self._config.data.val_crop_frac
        requests = (Request(self._val, b.rows, b.height, b.width, CentreCrop(b.height, b.width, frac)) for b in batches)
        for batch, (_, images) in zip(batches, self.backend.images(requests), strict=True):
            yield Batch(images, self._to_device(self._val_labels[batch.rows]), batch.num_valid)

    def _to_device(self, values: NDArray[np.generic]) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor


class _ValBatches:
    def __init__(self, plan: list[ValBatch], decode: Callable[[list[ValBatch]], Iterator[Batch]]) -> None:
        self._plan, self._decode = plan, decode

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[Batch]:
        return self._decode(self._plan)


def build_data_path(
    config: RunConfig, scan: Scan, plan: Plan, *, device: torch.device, rank: int, world_size: int
) -> DataPath:
    """Start the back end that ``data.backend`` names and put the data path of this rank on it.

    Raises:
        MachineError: ``data.backend=dali`` without DALI, or a DALI that this machine's GPU or driver refuses.
    """
    backend = start_backend(config, scan, plan, device=device, rank=rank)
    return ImageDataPath(config, scan, plan, backend, device=device, rank=rank, world_size=world_size)
