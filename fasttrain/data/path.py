"""The data path of one rank: which images, in which order, with which labels; a back end makes the pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.config.schema import RunConfig
from fasttrain.data import cache_registry
from fasttrain.data.augment import (
    Crop,
    RandomResizedCrop,
    draw_flips,
    draw_shifts,
    shift_images,
)
from fasttrain.data.backend import Backend, Request
from fasttrain.data.backend_choice import start_backend
from fasttrain.data.batch import Batch, to_device
from fasttrain.data.cache_plan import caches, num_shards
from fasttrain.data.cached_training import CachedTraining
from fasttrain.data.decode import image_sizes
from fasttrain.data.order import epoch_batches, epoch_order, micro_batches
from fasttrain.data.policy import Policy, build_transform, num_views
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

    def train_dtype(self, px: int) -> torch.dtype:
        """Of the training images of ``px``: uint8, or of normalised ones the type that the network computes in."""
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
        self._num_shards = num_shards(config)
        self._val_plans: dict[tuple[int, bool], list[ValBatch]] = {}
        self._kept_val: dict[tuple[int, bool], list[Batch]] = {}
        self._cache: CachedTraining | None = None
        if caches(config) and scan.source == "scan":
            self._cache = CachedTraining(
                config, scan, plan, self._train_labels, backend, device=device, rank=rank, world_size=world_size
            )
        else:
            cache_registry.take(None)

    def train_epoch(self, epoch: EpochPlan, *, first_step_in_epoch: int = 0) -> Iterator[list[Batch]]:
        """See ``DataPath``."""
        if self._cache is not None and self._cache.serves(epoch.px):
            yield from self._cache.train_epoch(epoch, first_step_in_epoch=first_step_in_epoch)
            return
        order = epoch_order(self._num_train, self._config.seed, epoch.recipe_epoch, num_shards=self._num_shards)
        batches = epoch_batches(order, epoch.batch_size, num_shards=self._num_shards)
        steps = range(first_step_in_epoch, epoch.steps)
        requests = (self._train_request(epoch, rows) for step in steps for rows in self._share(epoch, batches[step]))
        decoded = self.backend.images(requests)
        for _ in steps:
            yield [self._train_batch(epoch, *next(decoded)) for _ in range(epoch.accumulate)]

    def train_dtype(self, px: int) -> torch.dtype:
        """See ``DataPath``."""
        return self._cache.dtype if self._cache is not None and self._cache.serves(px) else torch.uint8

    def val_batches(self, px: int, *, rectangular: bool = False) -> Batches:
        """See ``DataPath``; with a cache they are kept after the first time, where there is room."""
        plan = self._val_plan(px, rectangular)
        if self._cache is None:
            return _ValBatches(plan, self._decode_validation)
        return _ValBatches(plan, lambda batches: self._kept_validation((px, rectangular), batches))

    def val_shapes(self, px: int, *, rectangular: bool = False) -> list[tuple[int, int, int]]:
        """See ``DataPath``."""
        return [(len(b.rows), b.height, b.width) for b in self._val_plan(px, rectangular)]

    def first_train_images(self, num_images: int, px: int) -> torch.Tensor:
        """See ``DataPath``."""
        # A back end takes no more at once than the run's largest batch.
        most = self._plan.largest_micro_batch
        parts = (np.arange(first, min(first + most, num_images)) for first in range(0, num_images, most))
        crop = CentreCrop(px, px, 1.0)
        return torch.cat(
            [images for _, images in self.backend.images(Request(self._train, rows, px, px, crop) for rows in parts)]
        )

    def close(self) -> None:
        """See ``DataPath``."""
        self._kept_val.clear()
        if self._cache is not None:
            self._cache.close()
        self.backend.close()

    def _share(self, epoch: EpochPlan, batch: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return micro_batches(batch, rank=self._rank, world_size=self._world_size, accumulate=epoch.accumulate)

    def _train_request(self, epoch: EpochPlan, rows: NDArray[np.int64]) -> Request:
        data, drawn = self._config.data, (self._config.seed, epoch.recipe_epoch, rows)
        crop: Crop
        if data.crop == "random_resized":
            crop = RandomResizedCrop.draw(*drawn, min_area=epoch.min_area)
        else:
            # The whole centre; it is shifted once it has its size.
            crop = CentreCrop(epoch.px, epoch.px, 1.0)
        flips = None if data.flip == "none" else draw_flips(*drawn, kind=data.flip)
        policy = None
        if data.augment != "none":
            transform = build_transform(data.augment, epoch.px, tuple(data.mean))
            policy = Policy.draw(transform, *drawn, num_views=num_views(self._config))
        return Request(self._train, rows, epoch.px, epoch.px, crop, flips, policy)

    def _train_batch(self, epoch: EpochPlan, request: Request, images: torch.Tensor) -> Batch:
        # The views of an image have its label, and are shifted alike.
        data, rows = self._config.data, np.tile(request.rows, request.num_images // len(request.rows))
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

    def _kept_validation(self, key: tuple[int, bool], batches: list[ValBatch]) -> Iterator[Batch]:
        """The decoded batches of the first time, bit for bit."""
        assert self._cache is not None
        if key in self._kept_val:
            yield from self._kept_val[key]
            return
        num_bytes = sum(len(batch.rows) * batch.height * batch.width * 3 for batch in batches)
        has_room = self._cache.cache.has_room_for(num_bytes)
        kept = []
        for batch in self._decode_validation(batches):
            if has_room:
                kept.append(batch)
            if len(kept) == len(batches):
                # Before the last one is handed out: nobody need ask for one more.
                self._kept_val[key] = kept
            yield batch

    def _to_device(self, values: NDArray[np.generic]) -> torch.Tensor:
        return to_device(values, self._device)


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
