"""Crops of cached images: cut, resized, shifted, mirrored and normalised in one go, on a GPU or anywhere.

The filter is the antialiased triangle of Pillow and torchvision: it reaches one output pixel, at least one of the
image, to each side, beyond the box where the image goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Images that the torch version works on at once: small enough for a processor's cache.
TORCH_CHUNK = 32


@dataclass(frozen=True, eq=False)
class Draws:
    """What was drawn for each image of an epoch or batch.

    Attributes:
        boxes: Top, left, height and width in pixels of the cached image, float32 [n, 4].
        moves: Mirrored (0 or 1), then pixels of the output that the image is moved down and across over a border
            that mirrors it, then 0, so that rows stay aligned; int32 [n, 4].
    """

    boxes: torch.Tensor
    moves: torch.Tensor

    def __getitem__(self, rows: slice | torch.Tensor) -> Draws:
        return Draws(self.boxes[rows], self.moves[rows])


def has_kernel(device: torch.device) -> bool:
    """Whether the Triton kernels run on ``device``."""
    if device.type != "cuda":
        return False
    try:
        import fasttrain.data.crop_kernel  # noqa: F401
    except ImportError:
        return False
    return True


class Cropper:
    """Makes training images from cached ones on one device, by the kernel where it runs.

    Args:
        device: Where images and crops are.
        dtype: Of the crops.
        mean, std: Of each channel, of pixels in 0..1.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, mean: list[float], std: list[float]) -> None:
        self.device, self.dtype = device, dtype
        self._mean, self._std = tuple(255 * value for value in mean), tuple(255 * value for value in std)
        self.has_kernel = has_kernel(device)

    def compile_kernels(self, flip: str) -> None:
        """Have the kernels at hand before the clock starts: drawn and cropped once, on one black image."""
        if not self.has_kernel:
            return
        from fasttrain.data import crop_kernel

        black = torch.zeros((1, 8, 8, 3), dtype=torch.uint8, device=self.device)
        slots = torch.zeros(1, dtype=torch.int64, device=self.device)
        sizes = torch.full((1, 2), 8, dtype=torch.int32, device=self.device)
        draws = Draws(*crop_kernel.draw(0, 0, slots, sizes, min_area=0.5, flip=flip, cached_size=(8, 8)))
        output = torch.empty((1, 8, 8, 3), dtype=self.dtype, device=self.device)
        self.crop(black, slots, draws, output)
        self.crop(black, slots, draws, output, places=slots)

    def crop(
        self,
        source: torch.Tensor,
        slots: torch.Tensor,
        draws: Draws,
        output: torch.Tensor,
        *,
        places: torch.Tensor | None = None,
    ) -> None:
        """Fill ``output`` or, with ``places``, some of its rows; see ``crop_with_torch``."""
        norm = {"mean": self._mean, "std": self._std}
        if self.has_kernel:
            from fasttrain.data import crop_kernel

            crop_kernel.crop(source, slots, draws.boxes, draws.moves, output, places=places, **norm)
        else:
            crop_with_torch(source, slots, draws, output, places=places, **norm)


def crop_with_torch(
    source: torch.Tensor,
    slots: torch.Tensor,
    draws: Draws,
    output: torch.Tensor,
    *,
    places: torch.Tensor | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> None:
    """Crops of n images.

    Args:
        source: Cached images, uint8 [m, height, width, 3].
        slots: Where each image is in ``source``, int64 [n].
        draws: Of the same images.
        output: Filled with the normalised crops, floating point [k, px, px, 3]; float64 makes all arithmetic so.
        places: Rows of ``output`` that they fill, int64 [n]; None for the first n.
        mean, std: Of each channel, of pixels in 0..255.
    """
    work = torch.float64 if output.dtype == torch.float64 else torch.float32
    norm = [torch.tensor(values, dtype=work, device=source.device) for values in (mean, std)]
    for start in range(0, len(slots), TORCH_CHUNK):
        here = slice(start, min(start + TORCH_CHUNK, len(slots)))
        crops = _crop_chunk(source, slots[here], draws[here], output.shape[1], work)
        crops = ((crops - norm[0]) / norm[1]).to(output.dtype)
        output[here if places is None else places[here]] = crops


def _crop_chunk(source: torch.Tensor, slots: torch.Tensor, draws: Draws, px: int, dtype: torch.dtype) -> torch.Tensor:
    """Resized crops in 0..255, floating point [n, px, px, 3]."""
    device = source.device
    top, left, height, width = draws.boxes.to(dtype).unbind(1)
    flipped, down, across, _ = draws.moves.unbind(1)
    line = torch.arange(px, device=device)
    rows, columns = _mirrored(line - down[:, None], px), _mirrored(line - across[:, None], px)
    columns = torch.where(flipped[:, None] != 0, px - 1 - columns, columns)
    images = torch.arange(len(slots), device=device)[:, None, None]

    lines = torch.zeros(len(slots), px, source.shape[2], 3, dtype=dtype, device=device)
    sums = torch.zeros(len(slots), px, dtype=dtype, device=device)
    # Taps are added one after the other: those of weight 0 that other images of a batch bring along change no bit.
    for index, weight in _taps(top, height, rows, px, source.shape[1]):
        lines += weight[:, :, None, None] * source[slots[:, None], index].to(dtype)
        sums += weight
    lines /= sums[:, :, None, None]
    crops = torch.zeros(len(slots), px, px, 3, dtype=dtype, device=device)
    sums = torch.zeros(len(slots), px, dtype=dtype, device=device)
    for index, weight in _taps(left, width, columns, px, source.shape[2]):
        crops += weight[:, None, :, None] * lines[images, line[:, None], index[:, None, :]]
        sums += weight
    return crops / sums[:, None, :, None]


def _taps(
    start: torch.Tensor, length: torch.Tensor, outputs: torch.Tensor, px: int, size: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pixels that take part in each output pixel along one side, and their weights, both [n, px], tap after tap.

    Args:
        start, length: Of the box along that side, pixels of the image, [n].
        outputs: Which output pixel each place shows, [n, px].
        px: Output pixels.
        size: The image's pixels.
    """
    step = (length / px)[:, None]
    reach = step.clamp(min=1)
    centre = start[:, None] + (outputs + 0.5) * step
    first = (centre - reach + 0.5).floor()
    taps = []
    for tap in range(int((2 * reach).ceil().max())):
        index = first + tap
        weight = (1 - (index + 0.5 - centre).abs() / reach).clamp(min=0)
        weight = torch.where((index >= 0) & (index < size), weight, 0)
        taps.append((index.clamp(0, size - 1).long(), weight))
    return taps


def _mirrored(index: torch.Tensor, size: int) -> torch.Tensor:
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)
