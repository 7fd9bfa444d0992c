"""One image file, with Pillow: opened, brought to RGB, or refused with the reason. Imports no torch.

Gray, palette, CMYK, 16-bit and RGBA images become RGB (transparency is dropped), as DALI makes them; EXIF
orientation is ignored.

A file is bad if Pillow cannot decode it to its last row: empty, no image, cut off anywhere before its end. Whatever
back end decodes, this is the one rule. What is damaged inside but still ends as it should is decoded as far as the
format goes: a JPEG whose middle is missing shows it in its pixels only. So is one whose header claims sides that no
image has: Pillow would ask for the memory of all its pixels first.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from fasttrain.errors import DataError, MachineError, Problem
from fasttrain.regular_file import NotAFileError, require_regular_file

# Pillow refuses images above 179 million pixels as an attack; whoever trains on a set has chosen its files.
Image.MAX_IMAGE_PIXELS = None

# No image has longer sides: JPEG's end at 65,535 pixels.
MAX_SIDE_PX = 2**20

# Errors of the system that say something about the file; any other one (a disk, a mount) says nothing about it.
FILE_ERRORS = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}

Result = TypeVar("Result")


def open_image(path: str) -> Image.Image:
    """An image whose pixels are not read yet.

    Raises:
        DataError: Not an image.
    """
    return explained(path, lambda: _opened(path))


def to_rgb(image: Image.Image) -> Image.Image:
    """Read the pixels and bring them to 8-bit RGB."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I"):
        # Pillow cuts 16-bit values off at 255 instead of scaling them.
        scaled = np.rint(np.asarray(image, dtype=np.float64) / 257).clip(0, 255).astype(np.uint8)
        return Image.fromarray(scaled).convert("RGB")
    return image.convert("RGB")


def image_size(path: str) -> tuple[int, int]:
    """Height and width in pixels, from the file's header.

    Raises:
        DataError: Not an image.
    """

    def read() -> tuple[int, int]:
        with _opened(path) as image:
            return image.height, image.width

    return explained(path, read)


def why_bad(path: str) -> str | None:
    """Why a file cannot be decoded to its last row; None if it can.

    Raises:
        DataError: The disk or the mount failed, which says nothing about the file.
        MachineError: The machine's memory is too small for it.
    """
    try:
        with _opened(path) as image:
            # A JPEG is read to its end at any scale; at an eighth of its size most of the arithmetic is saved.
            image.draft(None, (1, 1))
            image.load()
    except MemoryError as error:
        raise _no_memory(path) from error
    except Exception as error:
        if isinstance(error, OSError) and _is_of_the_disk(error):
            raise DataError(
                Problem(f"{path} cannot be read: {error.strerror}", "see that its disk or mount works, then try again")
            ) from error
        return _reason(path, error)
    return None


def explained(path: str, read: Callable[[], Result]) -> Result:
    """What ``read`` returns.

    Raises:
        DataError: Its errors in the user's words.
        MachineError: The machine's memory is too small for it.
    """
    try:
        return read()
    except MemoryError as error:
        raise _no_memory(path) from error
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, ValueError, struct.error, ...
        raise DataError(
            Problem(
                f"{path} cannot be decoded: {_reason(path, error)}",
                "get the file again from the data set's archive, or data.on_bad_file=skip: "
                "a run that starts so leaves such files out, and lists them",
            )
        ) from error


def _opened(path: str) -> Image.Image:
    require_regular_file(path)
    image = Image.open(path)
    if max(image.size) > MAX_SIDE_PX:
        image.close()
        raise ValueError(
            f"its header says {image.width:,} x {image.height:,} pixels, and no side has over {MAX_SIDE_PX:,}"
        )
    return image


def _no_memory(path: str) -> MachineError:
    return MachineError(
        Problem(
            f"{path} cannot be decoded: the memory that is free does not hold its pixels",
            "data.workers=1 to decode fewer at once, a machine with more memory, or make the image smaller",
        )
    )


def _is_of_the_disk(error: OSError) -> bool:
    return not isinstance(error, NotAFileError) and error.errno is not None and error.errno not in FILE_ERRORS


def _reason(path: str, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        with open(path, "rb") as file:
            start = file.read(16)
        return f"not an image, it starts with {start!r}" if start else "the file is empty"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
