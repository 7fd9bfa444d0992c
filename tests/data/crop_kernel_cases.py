"""Runs the Triton kernels where their cases are, and compares them with what runs anywhere.

A process of its own runs this with TRITON_INTERPRET=1, which must be set before Triton is imported; on a GPU
``test_cache_gpu.py`` calls the same functions.
"""

from __future__ import annotations

import numpy as np
import torch

from fasttrain.data import crop_kernel
from fasttrain.data.augment import RandomResizedCrop, draw_flips
from fasttrain.data.crop import Draws, crop_with_torch

MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
CACHED = (40, 36)


def differing_boxes(device: torch.device, count: int, *, flip: str, epoch: int) -> tuple[int, int]:
    """Of how many samples box or flip is another one than ``augment`` draws."""
    generator = np.random.default_rng(epoch)
    samples = generator.integers(0, 1_281_167, count)
    sizes = generator.integers(1, 700, (count, 2))
    sizes[:4] = [[100, 1000], [1000, 100], [1, 1], [3, 400]]  # of some no box fits
    boxes, moves = crop_kernel.draw(
        7,
        epoch,
        torch.from_numpy(samples).to(device),
        torch.from_numpy(sizes.astype(np.int32)).to(device),
        min_area=0.35,
        flip=flip,
        cached_size=CACHED,
    )
    corners = RandomResizedCrop.draw(7, epoch, samples, min_area=0.35).boxes(sizes)
    corners[:, 2:] -= corners[:, :2]
    expected = (corners * np.tile(CACHED, 2) / np.tile(sizes, 2)).astype(np.float32)
    flips = draw_flips(7, epoch, samples, kind=flip)
    assert not moves[:, 1:].any()
    return int((boxes.cpu().numpy() != expected).any(1).sum()), int((moves[:, 0].cpu().numpy() != flips).sum())


def worst_crop(device: torch.device, px: int, dtype: torch.dtype, *, scattered: bool) -> float:
    """Largest difference from the float64 twin, in standard deviations of a channel."""
    source = torch.randint(256, (5, *CACHED, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(px))
    slots = torch.tensor([4, 0, 3, 1, 2, 2])
    height, width = CACHED
    boxes = [
        [0, 0, height, width], [3.2, 5.5, 30.1, 11], [10, 10, 20, 25.5], [0, 0, 8, 8], [30, 20, 10, 16], [1, 2, 38, 30],
    ]  # fmt: skip
    moves = [[0, 0, 0, 0], [1, 0, 0, 0], [0, 2, -3, 0], [1, -3, 3, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    draws = Draws(torch.tensor(boxes, dtype=torch.float32), torch.tensor(moves, dtype=torch.int32))
    places = torch.tensor([5, 2, 0, 7, 1, 3]) if scattered else None
    rows = 8 if scattered else 6
    exact = torch.zeros(rows, px, px, 3, dtype=torch.float64)
    crop_with_torch(source, slots, draws, exact, places=places, mean=MEAN, std=STD)
    output = torch.zeros(rows, px, px, 3, dtype=dtype, device=device)
    crop_kernel.crop(
        source.to(device),
        slots.to(device),
        draws.boxes.to(device),
        draws.moves.to(device),
        output,
        places=None if places is None else places.to(device),
        mean=MEAN,
        std=STD,
    )
    return float((output.cpu().double() - exact).abs().max())


if __name__ == "__main__":
    cpu = torch.device("cpu")
    for flip, epoch in (("random", 0), ("alternating", 3), ("none", 1)):
        assert differing_boxes(cpu, 150, flip=flip, epoch=epoch) == (0, 0), flip
    for px, scattered in ((13, False), (20, True), (42, False)):
        assert worst_crop(cpu, px, torch.float32, scattered=scattered) < 5e-5, px
    assert worst_crop(cpu, 8, torch.float16, scattered=False) < 4e-3
    print("equal")
