"""Training batches from cached images: what is cached is cropped, what is not is decoded, kept and cropped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.config.schema import RunConfig
from fasttrain.data.backend import Backend, Request
from fasttrain.data.batch import COMPUTE_DTYPES, Batch, to_device
from fasttrain.data.cache_plan import serves
from fasttrain.data.crop import Cropper, Draws
from fasttrain.data.draw import Drawer, HostDraws
from fasttrain.data.order import epoch_batches, epoch_order
from fasttrain.data.rank_cache import RankCache
from fasttrain.data.scan import Scan
from fasttrain.stages import EpochPlan, Plan


class WholeImage:
    """The crop of what goes into the cache: all of an image. Keeps the sizes that the back end meets.

    Attributes:
        sizes: Heights and widths of the batch's images, int64 [n, 2]; known when the images are.
    """

    def __init__(self, num_images: int) -> None:
        self.sizes = np.ones((num_images, 2), dtype=np.int64)

    def boxes(self, sizes: NDArray[np.int64], part: slice = slice(None)) -> NDArray[np.float64]:
        """See ``augment.Crop``."""
        self.sizes[part] = sizes
        return np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Epoch:
    """One rank's images of an epoch in the order of its steps; n is all of them.

    Attributes:
        samples: Indices in the training split, int64 [n].
        local: Their numbers among the rank's own, int64 [n].
        cached: Which of them are in the cache when the epoch begins, bool [n].
        host_draws: What the host drew ahead, if it did.
    """

    samples: NDArray[np.int64]
    local: NDArray[np.int64]
    cached: NDArray[np.bool_]
    host_draws: HostDraws | None


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """An epoch's labels, int64 [n], and, where some are cached, draws and places in the cache of all of them."""

    labels: torch.Tensor
    draws: Draws | None
    slots: torch.Tensor | None


class CachedTraining:
    """The training epochs of the stages that one rank's cache serves; the first of them fills it.

    Args:
        config: The run.
        scan: What there is.
        plan: What is asked for.
        labels: Classes of the training split, int64 [num_train].
        backend: Decodes what is not cached.
        device: Where batches lie.
        rank, world_size: Of this process.

    Attributes:
        cache: This rank's images.
        dtype: Of the images of a batch.

    Raises:
        ConfigError: The shards do not divide over the ranks.
    """

    def __init__(
        self,
        config: RunConfig,
        scan: Scan,
        plan: Plan,
        labels: NDArray[np.int64],
        backend: Backend,
        *,
        device: torch.device,
        rank: int,
        world_size: int,
    ) -> None:
        self.cache = RankCache(config, scan, decoder=backend.name, device=device, rank=rank, world_size=world_size)
        self.dtype = COMPUTE_DTYPES[config.trainer.precision]
        self._seed, self._split, self._plan = config.seed, scan.train, plan
        self._labels, self._backend = labels, backend
        self._device, self._rank, self._world_size = device, rank, world_size
        self._cropper = Cropper(device, self.dtype, config.data.mean, config.data.std)
        self._drawer = Drawer(config, self.cache.size, device, has_kernel=self._cropper.has_kernel)
        self._cropper.compile_kernels(config.data.flip)
        # Values of the largest batch that the cache makes.
        self._block = max(
            (plan.micro_batch(epoch) * epoch.px**2 * 3 for epoch in plan.epochs if self.serves(epoch.px)), default=0
        )
        self._background = ThreadPoolExecutor(1, "next_epoch")
        self._next: tuple[int, Future[_Epoch]] | None = None

    def serves(self, px: int) -> bool:
        """Whether training images of ``px`` come from the cache; arrays in memory have nothing better to offer."""
        return self._split.images is not None or serves(self.cache.size[0], px)

    def train_epoch(self, epoch: EpochPlan, *, first_step_in_epoch: int = 0) -> Iterator[list[Batch]]:
        """See ``DataPath``; images are normalised, in ``dtype``."""
        store = self.cache.open()
        store.settle()
        laid = self._laid_out(epoch)
        sent = self._send(epoch, laid)
        micro_batch, per_step = self._plan.micro_batch(epoch), epoch.accumulate
        parts = [
            slice(number * micro_batch, (number + 1) * micro_batch)
            for number in range(first_step_in_epoch * per_step, epoch.steps * per_step)
        ]
        decoded = self._backend.images(self._requests(laid, parts))
        streamed = None
        if store.placement.kind == "host":
            streamed = store.batches(own for part in parts if len(own := laid.local[part][laid.cached[part]]))
        for first in range(0, len(parts), per_step):
            step = [self._batch(epoch, laid, sent, part, decoded, streamed) for part in parts[first : first + per_step]]
            if first + per_step == len(parts):
                # Before the last step is handed out: nobody need ask for one more.
                self.cache.epoch_done()
            yield step

    def close(self) -> None:
        """Give back threads and memory."""
        self._background.shutdown(cancel_futures=True)
        self.cache.close()

    def _laid_out(self, epoch: EpochPlan) -> _Epoch:
        """An epoch, laid out in the background where that was begun; begins the one after it."""
        if self._next is not None and self._next[0] == epoch.epoch:
            laid = self._next[1].result()
        else:
            laid = self._lay_out(epoch)
        self._next = None
        following = self._plan.epochs[epoch.epoch + 1 : epoch.epoch + 2]
        # Only a full cache is the same when the next epoch begins.
        if following and self.serves(following[0].px) and self.cache.open().is_full:
            self._next = following[0].epoch, self._background.submit(self._lay_out, following[0])
        return laid

    def _lay_out(self, epoch: EpochPlan) -> _Epoch:
        shards, store = self.cache.num_shards, self.cache.open()
        order = epoch_order(self._plan.num_train, self._seed, epoch.recipe_epoch, num_shards=shards)
        batches = epoch_batches(order, epoch.batch_size, num_shards=shards)[: epoch.steps]
        share = epoch.batch_size // self._world_size
        samples = np.ascontiguousarray(batches[:, self._rank * share : (self._rank + 1) * share]).reshape(-1)
        local = self.cache.local(samples)
        cached = store.filled[local]
        host_draws = self._drawer.on_host(epoch, samples, store.sizes[local]) if cached.any() else None
        return _Epoch(samples, local, cached, host_draws)

    def _send(self, epoch: EpochPlan, laid: _Epoch) -> _OnDevice:
        """What the epoch's steps need on the device, sent once."""
        store = self.cache.open()
        labels = to_device(self._labels[laid.samples], self._device)
        if not laid.cached.any():
            return _OnDevice(labels, None, None)
        draws = self._drawer.draw(epoch, laid.samples, store.sizes[laid.local], laid.host_draws)
        return _OnDevice(labels, draws, to_device(laid.local, self._device))

    def _requests(self, laid: _Epoch, parts: list[slice]) -> Iterator[Request]:
        """What has to be decoded: a request for each micro-batch that has such images."""
        height, width = self.cache.size
        for part in parts:
            rows = laid.samples[part][~laid.cached[part]]
            if len(rows):
                yield Request(self._split, rows, height, width, WholeImage(len(rows)))

    def _room(self, num_images: int, px: int) -> torch.Tensor:
        """Memory of a batch, [n, px, px, 3], in a block that is as large at every px.

        After a change of px torch's allocator hands out the blocks of the px before; it would keep those of several
        sizes side by side, up to a few of each.
        """
        shape = (num_images, px, px, 3)
        block = torch.empty(self._block, dtype=self.dtype, device=self._device)
        return block[: math.prod(shape)].view(shape)

    def _batch(
        self,
        epoch: EpochPlan,
        laid: _Epoch,
        sent: _OnDevice,
        part: slice,
        decoded: Iterator[tuple[Request, torch.Tensor]],
        streamed: Iterator[torch.Tensor] | None,
    ) -> Batch:
        cached = laid.cached[part]
        images = self._room(len(cached), epoch.px)
        if cached.any():
            assert sent.draws is not None
            assert sent.slots is not None
            draws, slots, places = sent.draws[part], sent.slots[part], None
            if not cached.all():
                places = to_device(np.flatnonzero(cached), self._device)
                draws, slots = draws[places], slots[places]
            source = self.cache.open().images
            if streamed is not None:
                source = next(streamed)
                slots = torch.arange(len(source), device=self._device)
            self._cropper.crop(source, slots, draws, images, places=places)
        if not cached.all():
            request, squares = next(decoded)
            assert isinstance(request.crop, WholeImage)
            sizes = request.crop.sizes
            self.cache.open().put(laid.local[part][~cached], squares, sizes)
            draws = self._drawer.draw(epoch, request.rows, sizes.astype(np.int32))
            slots = torch.arange(len(squares), device=self._device)
            places = to_device(np.flatnonzero(~cached), self._device) if cached.any() else None
            self._cropper.crop(squares, slots, draws, images, places=places)
        return Batch(images, sent.labels[part], len(cached))
