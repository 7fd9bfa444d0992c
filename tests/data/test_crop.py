"""Crops of cached images: equal to what torch and Pillow make of the same boxes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from fasttrain.data.augment import flip_images, shift_images
from fasttrain.data.crop import Cropper, Draws, crop_with_torch
from fasttrain.data.preprocess import Normalize
from tests.data.samples import photo

BLACK, UNIT = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def crops(
    images: torch.Tensor,
    boxes: list[list[float]],
    px: int,
    *,
    moves: list[list[int]] | None = None,
    slots: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Crops in 0..255; boxes are top, left, height, width, moves flipped, down, across."""
    drawn = Draws(
        torch.tensor(boxes, dtype=torch.float32),
        torch.tensor([[*move, 0] for move in moves or [[0, 0, 0]] * len(boxes)], dtype=torch.int32),
    )
    output = torch.full((len(boxes), px, px, 3), float("nan"), dtype=dtype)
    places = torch.tensor(slots if slots is not None else range(len(boxes)))
    crop_with_torch(images, places, drawn, output, places=None, mean=BLACK, std=UNIT)
    return output


@pytest.mark.parametrize("px", [7, 16, 24, 40])
def test_whole_image_equals_interpolate(px: int) -> None:
    images = torch.randint(256, (3, 24, 31, 3), dtype=torch.uint8)
    expected = functional.interpolate(
        images.permute(0, 3, 1, 2).double(), (px, px), mode="bilinear", antialias=True
    ).permute(0, 2, 3, 1)
    assert torch.allclose(crops(images, [[0, 0, 24, 31]] * 3, px), expected, atol=1e-9)


@pytest.mark.parametrize("px", [12, 32, 60])
@pytest.mark.parametrize(
    ("top", "left", "height", "width"),
    [(0, 0, 50, 70), (0, 0, 9, 9), (41, 60, 9, 10), (10, 20, 30, 17), (3, 0, 44, 70), (20.5, 30.25, 12.75, 31.5)],
)
def test_box_equals_pillow(px: int, top: float, left: float, height: float, width: float) -> None:
    image = photo(50, 70, 1)
    resized = image.resize((px, px), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    ours = crops(torch.from_numpy(np.array(image))[None], [[top, left, height, width]], px)[0]
    # Pillow rounds after each of its two passes.
    assert (ours - torch.from_numpy(np.array(resized)).double()).abs().max() <= 1


def test_moves_equal_flip_and_shift_of_the_resized_image() -> None:
    images = torch.randint(256, (6, 20, 26, 3), dtype=torch.uint8)
    boxes = [[1.0, 2.0, 17.0, 21.0]] * 6
    flips, shifts = [0, 1, 0, 1, 1, 0], [[0, 0], [0, 0], [3, -4], [-2, 1], [4, 4], [-4, 0]]
    plain = crops(images, boxes, 15)
    expected = shift_images(flip_images(plain, torch.tensor(flips) != 0), torch.tensor(shifts))
    moves = [[flip, *shift] for flip, shift in zip(flips, shifts, strict=True)]
    assert torch.equal(crops(images, boxes, 15, moves=moves), expected)


def test_image_of_the_outputs_size_keeps_its_pixels() -> None:
    images = torch.randint(256, (4, 32, 32, 3), dtype=torch.uint8)
    assert torch.equal(crops(images, [[0, 0, 32, 32]] * 4, 32, dtype=torch.float32), images.float())


def test_crop_is_the_same_in_any_company() -> None:
    """Another image of the batch may need more taps; this one's bits do not change."""
    images = torch.randint(256, (40, 64, 64, 3), dtype=torch.uint8)
    generator = np.random.default_rng(0)
    sides = generator.uniform(5, 64, (40, 2))
    boxes = np.concatenate([generator.uniform(0, 1, (40, 2)) * (64 - sides), sides], axis=1).tolist()
    together = crops(images, boxes, 20, dtype=torch.float32)
    for chosen in ([3], [39, 0, 17], list(range(5, 38))):
        alone = crops(images, [boxes[k] for k in chosen], 20, slots=chosen, dtype=torch.float32)
        assert torch.equal(alone, together[chosen])


def test_places_fill_their_rows_and_no_other() -> None:
    images = torch.randint(256, (3, 8, 8, 3), dtype=torch.uint8)
    drawn = Draws(torch.tensor([[0.0, 0, 8, 8]] * 3), torch.zeros(3, 4, dtype=torch.int32))
    output = torch.full((5, 8, 8, 3), -1.0)
    places = torch.tensor([4, 0, 2])
    crop_with_torch(images, torch.tensor([0, 1, 2]), drawn, output, places=places, mean=BLACK, std=UNIT)
    assert torch.equal(output[places], images.float())
    assert (output[[1, 3]] == -1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_normalised_as_the_network_would(dtype: torch.dtype) -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = torch.randint(256, (2, 16, 16, 3), dtype=torch.uint8)
    drawn = Draws(torch.tensor([[0.0, 0, 16, 16]] * 2), torch.zeros(2, 4, dtype=torch.int32))
    output = torch.empty(2, 16, 16, 3, dtype=dtype)
    Cropper(torch.device("cpu"), dtype, mean, std).crop(images, torch.arange(2), drawn, output)
    normalize = Normalize(mean, std)
    expected = normalize(images)
    ours = normalize(output)
    assert ours.dtype == dtype
    assert ours.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(ours.float(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
