"""The shared preprocessing: torchvision's Resize and CenterCrop, and the normalisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from fasttrain.data.preprocess import CentreCrop, Normalize, preprocessing_description
from tests.data.samples import make_config, photo


@pytest.mark.parametrize("crop_frac", [0.875, 1.0, 0.95])
@pytest.mark.parametrize(("height", "width"), [(120, 160), (160, 120), (97, 41), (64, 64), (30, 200)])
def test_square_crop_is_torchvisions(height: int, width: int, crop_frac: float) -> None:
    px, image = 48, photo(height, width, seed=1)
    ((top, left, bottom, right),) = CentreCrop(px, px, crop_frac).boxes(np.array([[height, width]]))
    ours = image.resize((px, px), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    resized = functional.resize(image, round(px / crop_frac), antialias=True)
    theirs = functional.center_crop(resized, [px, px])
    difference = np.abs(np.asarray(ours).astype(int) - np.asarray(theirs).astype(int))
    # A box and a whole image round the filter's weights differently.
    assert difference.max() <= 2
    assert difference.mean() < 0.2


def test_boxes_by_hand() -> None:
    # 100 x 200 at 56 px and 0.875: resized to 64 x 128, the middle 56 x 56 starts at 4, 36.
    boxes = CentreCrop(56, 56, 0.875).boxes(np.array([[100, 200]]))
    assert boxes.tolist() == [[6.25, 56.25, 93.75, 143.75]]
    # 56 x 80 output: 64 x 91 must be held, so 64 x 128 again.
    boxes = CentreCrop(56, 80, 0.875).boxes(np.array([[100, 200]]))
    assert boxes.tolist() == [[6.25, 37.5, 93.75, 162.5]]
    # A tall image under a wide output: the width limits, 91 x 182.
    assert CentreCrop(56, 80, 0.875).resized(np.array([[200, 100]])).tolist() == [[182, 91]]


def test_normalize_keeps_channels_last_memory() -> None:
    images = torch.randint(256, (2, 5, 4, 3), dtype=torch.uint8)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    normalized = Normalize(mean, std)(images)
    expected = functional.normalize(images.permute(0, 3, 1, 2).float() / 255, list(mean), list(std))
    assert normalized.dtype == torch.float32
    assert normalized.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(normalized, expected, atol=1e-5, rtol=0)
    assert not Normalize(mean, std).state_dict()


def test_description_is_plain_and_complete() -> None:
    config = make_config([{"val_px": 32}, {"val_px": 56, "rectangular_val": True}])
    assert preprocessing_description(config) == {
        "px": 56,
        "rectangular": True,
        "resize_px": 64,
        "crop_frac": 0.875,
        "interpolation": "bilinear",
        "antialias": True,
        "exif_orientation": "ignored",
        "colour": "RGB",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
