"""Files that DALI does not decode as the other back ends do: those that it cannot, and JPEGs that are cut off."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fasttrain.data.backend import Request
from fasttrain.data.decode import decode_part, find_bad_files
from fasttrain.errors import DataError

STAND_IN_PX = 32
JPEG_START, JPEG_END = (0xFF, 0xD8), (0xFF, 0xD9)


class OddFiles:
    """Owns what is known of a run's odd files, and the image that stands in for those that only Pillow decodes.

    Attributes:
        stand_in: Path of a JPEG of ``STAND_IN_PX`` pixels a side, there until ``close``.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fasttrain-dali-")
        self.stand_in = str(Path(self._folder.name) / "stand_in.jpg")
        Image.new("RGB", (STAND_IN_PX, STAND_IN_PX)).save(self.stand_in)
        self._pillow_only: set[str] = set()
        self._whole: set[str] = set()  # JPEGs that Pillow decodes although something follows their end

    def close(self) -> None:
        """Remove the stand-in."""
        self._folder.cleanup()

    def leave_to_pillow(self, paths: Iterable[str]) -> None:
        """From now on DALI has the stand-in for these."""
        self._pillow_only.update(paths)

    def is_left_to_pillow(self, path: str) -> bool:
        """Whether DALI has the stand-in for this one."""
        return path in self._pillow_only

    def for_dali(self, request: Request) -> list[str]:
        """The files of a request, with the stand-in in place of those that DALI cannot decode."""
        paths = request.split.paths
        names = [paths[row] for row in request.rows.tolist()]
        if not self._pillow_only:
            return names
        return [self.stand_in if name in self._pillow_only else name for name in names]

    def fill_in(self, request: Request, images: torch.Tensor) -> None:
        """Decode with Pillow what DALI had the stand-in for.

        Args:
            request: The batch; of files.
            images: What DALI made of it, uint8 [n, height, width, 3], changed in place.
        """
        if not self._pillow_only:
            return
        for place, row in enumerate(request.rows.tolist()):
            if request.split.paths[row] in self._pillow_only:
                decoded = np.empty(images.shape, dtype=np.uint8)
                decode_part(request, slice(place, place + 1), decoded)
                images[place] = torch.from_numpy(decoded[place])

    def check_ends(self, request: Request, first: NDArray[np.uint8], last: NDArray[np.uint8]) -> None:
        """Refuse JPEGs that are cut off, as every other back end does: nvJPEG fills what is missing with gray.

        Args:
            request: The batch.
            first, last: Two bytes of each file, uint8 [n, 2].

        Raises:
            DataError: Files that Pillow cannot decode to their end.
        """
        endless = (first == JPEG_START).all(axis=1) & (last != JPEG_END).any(axis=1)
        paths = [request.split.paths[row] for row in request.rows[endless].tolist()]
        unknown = [path for path in dict.fromkeys(paths) if path not in self._whole and path not in self._pillow_only]
        if problems := find_bad_files(unknown):
            raise DataError(problems)
        self._whole.update(unknown)
