"""One file of each kind that real data sets have, whatever its name says."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.samples import photo

# Of 255: what the black of the print leaves of the colours.
LIGHT = 215


def adobe_ycck(image: Image.Image) -> bytes:
    """A JPEG as Photoshop writes it for print: inverted CMYK, whose colours are stored as YCbCr with black."""
    # YCCK keeps 255 minus the colours, and these are inverted already: the negative's YCbCr, next to the light.
    negative = Image.fromarray(255 - np.asarray(image)).convert("YCbCr")
    inverted = Image.merge("CMYK", [*negative.split(), Image.new("L", image.size, LIGHT)])
    # Pillow inverts what it writes as CMYK, so hand it the inverse of the stored values.
    stored = Image.fromarray(255 - np.asarray(inverted), "CMYK")
    content = io.BytesIO()
    stored.save(content, "JPEG", quality=95)
    data = bytearray(content.getvalue())
    # Adobe's marker: its last byte is the transform, 0 for plain CMYK and 2 for YCCK.
    place = data.index(b"Adobe") + 11
    assert data[place] == 0
    data[place] = 2
    return bytes(data)


def png(pixels: np.ndarray, colour_type: int, *, transparent: bytes = b"") -> bytes:
    """A PNG of 16 bits a channel, which Pillow does not write in colour: uint16 [h, w, channels]."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))]
    parts += [chunk(b"tRNS", transparent)] if transparent else []
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")])


def photographs(folder: Path) -> dict[str, str]:
    """Write one photo in many forms; returns each file's name with what it shows: ``colour`` or ``gray``."""
    folder.mkdir(parents=True, exist_ok=True)
    image = photo(60, 80, seed=5)
    gray, colour = np.asarray(image.convert("L")).astype(np.uint16), np.asarray(image).astype(np.uint16)
    alpha = Image.fromarray(np.tile(np.arange(80, dtype=np.uint8) * 3, (60, 1)))
    rgba = Image.merge("RGBA", [*image.split(), alpha])
    palette = image.quantize(200, dither=Image.Dither.NONE)
    (folder / "ycck.JPEG").write_bytes(adobe_ycck(image))
    (folder / "wide_rgb.png").write_bytes(png(colour * 257, 2))
    (folder / "wide_rgba.png").write_bytes(png(np.concatenate([colour, gray[..., None]], axis=2) * 257, 6))
    (folder / "wide_gray_alpha.png").write_bytes(png(np.stack([gray, gray], axis=2) * 257, 4))
    image.convert("CMYK").save(folder / "cmyk.JPEG", quality=95)
    image.convert("L").save(folder / "gray.JPEG")
    image.save(folder / "progressive.jpg", progressive=True)
    image.save(folder / "full_colour.jfif", format="JPEG", subsampling=0)
    image.save(folder / "half_colour.JPE", format="JPEG", subsampling=1)
    image.save(folder / "png.JPEG", format="PNG")
    rgba.save(folder / "rgba.JPEG", format="PNG")
    rgba.convert("LA").save(folder / "gray_alpha.png")
    palette.save(folder / "palette.JPEG", format="PNG")
    palette.save(folder / "palette_clear.png", transparency=7)
    image.save(folder / "gif.JPEG", format="GIF")
    palette.save(folder / "moving.gif", save_all=True, append_images=[palette.rotate(180)], transparency=3)
    Image.fromarray(gray * 257).save(folder / "wide.png")
    image.save(folder / "lossless.webp", lossless=True)
    rgba.save(folder / "alpha.WEBP", lossless=True)
    image.save(folder / "x.bmp")
    image.save(folder / "x.TIFF", compression="tiff_lzw")
    image.save(folder / "x.ppm")
    image.convert("L").save(folder / "x.pgm", format="PPM")
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(folder / f"turned_{orientation}.jpg", exif=exif)
    grays = {"gray.JPEG", "gray_alpha.png", "wide.png", "wide_gray_alpha.png", "x.pgm"}
    return {path.name: "gray" if path.name in grays else "colour" for path in sorted(folder.iterdir())}


def extreme_sides(folder: Path) -> list[str]:
    """Write images of extreme sides; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for height, width in [(1, 1), (1, 2), (2, 1), (1, 3000), (3000, 1), (7, 900), (900, 7), (2000, 3000)]:
        image = photo(height, width, seed=height + width)
        image.save(folder / f"{height:04}x{width:04}.jpg", quality=95)
        image.save(folder / f"{height:04}x{width:04}.png", compress_level=1)
    return sorted(path.name for path in folder.iterdir())
