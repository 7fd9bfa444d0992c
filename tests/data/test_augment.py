"""Augmentation is a function of (seed, epoch, sample), and distributed as torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop as Reference

from fasttrain.data.augment import (
    RandomResizedCrop,
    draw_flips,
    draw_shifts,
    flip_images,
    shift_images,
    uniforms,
)

SAMPLES = np.arange(64)
# Written down once: a run resumes with the same crops on any machine.
UNIFORMS = [0.6075954635120103, 0.6299144574481973, 0.24538167349202744]


def test_uniforms_are_the_same_on_every_machine() -> None:
    (row,) = uniforms(1, 2, np.array([3]), 3, stream=0)
    assert row.tolist() == UNIFORMS


def test_uniforms_depend_on_every_argument_and_on_nothing_else() -> None:
    base = uniforms(1, 2, SAMPLES, 4, stream=0)
    for other in (uniforms(2, 2, SAMPLES, 4, stream=0), uniforms(1, 3, SAMPLES, 4, stream=0)):
        assert (base != other).all()
    assert (base != uniforms(1, 2, SAMPLES, 4, stream=1)).all()
    assert (base[5:9] == uniforms(1, 2, SAMPLES[5:9], 4, stream=0)).all()
    assert (base[:, :2] == uniforms(1, 2, SAMPLES, 2, stream=0)).all()
    assert len(np.unique(base)) == base.size


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    draws = uniforms(0, 0, np.arange(20_000), 2, stream=0)
    assert draws.min() >= 0
    assert draws.max() < 1
    # Standard errors: 0.002 of the mean, 0.007 of the correlation.
    assert abs(draws.mean(axis=0) - 0.5).max() < 0.01
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.03


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(0.01, 1.0), st.integers(0, 2**32 - 1), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_boxes_lie_in_the_image(height: int, width: int, min_area: float, seed: int, epoch: int) -> None:
    crop = RandomResizedCrop.draw(seed, epoch, SAMPLES[:8], min_area=min_area)
    boxes = crop.boxes(np.tile([height, width], (8, 1)))
    top, left, bottom, right = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (bottom <= height).all()
    assert (right <= width).all()
    assert (bottom - top >= 1).all()
    assert (right - left >= 1).all()
    assert (boxes == boxes.round()).all()


def test_boxes_are_distributed_as_torchvisions() -> None:
    num, height, width, min_area = 4000, 300, 400, 0.2
    crop = RandomResizedCrop.draw(3, 0, np.arange(num), min_area=min_area)
    ours = crop.boxes(np.tile([height, width], (num, 1)))
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    theirs = np.array(
        [Reference.get_params(image, [min_area, 1.0], [3 / 4, 4 / 3]) for _ in range(num)], dtype=np.float64
    )
    theirs[:, 2:] += theirs[:, :2]
    quantiles = [0.05, 0.25, 0.5, 0.75, 0.95]
    area = lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) / (height * width)  # noqa: E731
    ratio = lambda b: np.log((b[:, 3] - b[:, 1]) / (b[:, 2] - b[:, 0]))  # noqa: E731
    for figure in (area, ratio, lambda b: b[:, 0] / height, lambda b: b[:, 1] / width):
        difference = np.quantile(figure(ours), quantiles) - np.quantile(figure(theirs), quantiles)
        assert abs(difference).max() < 0.03  # twice the standard error of a quantile


@pytest.mark.parametrize(("height", "width"), [(100, 1000), (1000, 100)])
def test_image_of_which_no_box_fits_is_cut_in_the_centre(height: int, width: int) -> None:
    crop = RandomResizedCrop.draw(0, 0, SAMPLES, min_area=1.0)
    boxes = crop.boxes(np.tile([height, width], (64, 1)))
    wide = [0, (1000 - 133) // 2, 100, (1000 - 133) // 2 + 133]
    expected = wide if width > height else [wide[1], wide[0], wide[3], wide[2]]
    assert (boxes == expected).all()


def test_part_of_a_batch_has_the_boxes_of_the_whole() -> None:
    crop = RandomResizedCrop.draw(1, 1, SAMPLES, min_area=0.3)
    sizes = np.stack([40 + SAMPLES, 90 - SAMPLES], axis=1)
    whole = crop.boxes(sizes)
    assert (crop.boxes(sizes[10:20], slice(10, 20)) == whole[10:20]).all()
    alone = RandomResizedCrop.draw(1, 1, SAMPLES[33:34], min_area=0.3)
    assert (alone.boxes(sizes[33:34]) == whole[33]).all()


def test_flips() -> None:
    samples = np.arange(1000)
    alternating = [draw_flips(1, epoch, samples, kind="alternating") for epoch in range(4)]
    assert (alternating[0] != alternating[1]).all()
    assert (alternating[0] == alternating[2]).all()
    assert (alternating[1] == alternating[3]).all()
    random = [draw_flips(1, epoch, samples, kind="random") for epoch in range(2)]
    for flips in (alternating[0], *random, random[0] ^ random[1]):
        assert 430 < flips.sum() < 570  # 4.4 standard deviations
    assert not draw_flips(1, 0, samples, kind="none").any()


def test_shifts_cover_the_border_evenly() -> None:
    shifts = draw_shifts(1, 0, np.arange(9000), pad_px=4)
    values, counts = np.unique(shifts[:, 0], return_counts=True)
    assert values.tolist() == list(range(-4, 5))
    assert counts.min() > 850
    assert counts.max() < 1150


def test_images_are_flipped_one_by_one() -> None:
    images = torch.arange(2 * 2 * 3 * 3, dtype=torch.uint8).reshape(2, 2, 3, 3)
    flipped = flip_images(images, torch.tensor([True, False]))
    assert (flipped[0] == images[0].flip(1)).all()
    assert (flipped[1] == images[1]).all()


def test_shift_equals_a_cut_from_a_mirrored_border() -> None:
    images = torch.randint(256, (25, 7, 9, 3), dtype=torch.uint8)
    shifts = torch.tensor([(down, across) for down in range(-2, 3) for across in range(-2, 3)])
    shifted = shift_images(images, shifts)
    padded = np.pad(images.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    for number, (down, across) in enumerate(shifts.tolist()):
        expected = padded[number, 2 - down : 9 - down, 2 - across : 11 - across]
        assert (shifted[number].numpy() == expected).all()
