"""Test-time augmentation against views written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fasttrain.trainer.views import predict


def network(images: Tensor) -> Tensor:
    """Not linear in the pixels, and different for every view."""
    weights = torch.linspace(-1, 1, 5 * images[0].numel()).view(5, -1)
    return torch.tanh(images.flatten(1) @ weights.T)


@pytest.fixture
def images() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 2, 4, 5)


def moved(images: Tensor, down: int, right: int) -> Tensor:
    """One pixel at a time, over a border that mirrors the image without its edge."""

    def mirrored(index: int, size: int) -> int:
        index = abs(index)
        return index if index < size else 2 * (size - 1) - index

    height, width = images.shape[-2:]
    result = torch.empty_like(images)
    for row in range(height):
        for column in range(width):
            source = mirrored(row - down, height), mirrored(column - right, width)
            result[..., row, column] = images[..., source[0], source[1]]
    return result


def mirror(images: Tensor) -> Tensor:
    return torch.stack([images[..., column] for column in reversed(range(images.shape[-1]))], dim=-1)


def test_without_augmentation_both_are_the_networks(images: Tensor) -> None:
    logits = predict(network, images, "none")
    assert torch.equal(logits.counting, network(images))
    assert torch.equal(logits.plain, network(images))


def test_flip_is_the_mean_with_the_mirror_image(images: Tensor) -> None:
    logits = predict(network, images, "flip")
    assert torch.allclose(logits.counting, (network(images) + network(mirror(images))) / 2, atol=1e-6)
    assert torch.equal(logits.plain, network(images))


def test_flip_shift_gives_the_shifts_together_the_weight_of_the_image(images: Tensor) -> None:
    up_left, down_right = moved(images, -1, -1), moved(images, 1, 1)
    still = (network(images) + network(mirror(images))) / 2
    shifts = [network(view) for shift in (up_left, down_right) for view in (shift, mirror(shift))]
    logits = predict(network, images, "flip_shift")
    assert torch.allclose(logits.counting, still / 2 + sum(shifts) / 8, atol=1e-6)
    assert torch.equal(logits.plain, network(images))


def test_logits_are_fp32_whatever_the_network_gives(images: Tensor) -> None:
    logits = predict(lambda view: network(view).bfloat16(), images, "flip_shift")
    assert {logits.counting.dtype, logits.plain.dtype} == {torch.float32}
