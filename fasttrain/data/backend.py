"""What a back end is asked for and gives: pixels, in order, read ahead; no epochs, ranks or labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fasttrain.data.augment import Crop
from fasttrain.data.policy import Policy
from fasttrain.data.scan import Split


@dataclass(frozen=True, eq=False)
class Request:
    """A batch to be decoded.

    Attributes:
        split: Where the images are.
        rows: Their places in the split, int64 [n].
        height, width: Of the output, pixels.
        crop: What part of each image is resampled to the output, with antialiased bilinear interpolation;
            pixels outside the box take part where the filter reaches them.
        flips: Which images are mirrored left to right, bool [n]; None for none.
        policy: What is done to each Pillow image then; None for nothing. For the torchvision back end only.
    """

    split: Split
    rows: NDArray[np.int64]
    height: int
    width: int
    crop: Crop
    flips: NDArray[np.bool_] | None = None
    policy: Policy | None = None

    @property
    def num_images(self) -> int:
        """Images that come back: several of each, where the policy makes several views."""
        return len(self.rows) * (self.policy.num_views if self.policy else 1)


class Backend(Protocol):
    """A way to decode.

    Attributes:
        name: As in ``data.backend``.
    """

    name: str

    def images(self, requests: Iterable[Request]) -> Iterator[tuple[Request, torch.Tensor]]:
        """Decode batch after batch, reading ahead.

        Several of these may be open at once (validation in the middle of an epoch) and may be left before
        their end: what was read ahead for one never shows up in another.

        Yields:
            Each request with its images, uint8 [num_images, height, width, 3] on the device, safe to keep.

        Raises:
            DataError: A file that cannot be decoded, named with the reason.
        """
        ...

    def close(self) -> None:
        """Give back threads, memory and files."""
        ...
