"""Random pixels that lie on the device already: measures what training costs when data costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from fasttrain.data.backend import Request


class SyntheticBackend:
    """Makes one batch of each shape at its first use and gives it again and again.

    Args:
        device: Where the images are.
        seed: The pixels are a function of it and of the shape.
    """

    name = "synthetic"

    def __init__(self, *, device: torch.device, seed: int) -> None:
        self._device, self._seed = device, seed
        self._made: dict[tuple[int, int, int], torch.Tensor] = {}

    def images(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        """See ``Backend``; the rows asked for do not matter."""
        for request in requests:
            yield request, self._batch((request.num_images, request.height, request.width))

    def close(self) -> None:
        """See ``Backend``."""
        self._made.clear()

    def _batch(self, shape: tuple[int, int, int]) -> torch.Tensor:
        if shape not in self._made:
            generator = torch.Generator(self._device).manual_seed(self._seed)
            self._made[shape] = torch.randint(
                256, (*shape, 3), dtype=torch.uint8, device=self._device, generator=generator
            )
        return self._made[shape]
