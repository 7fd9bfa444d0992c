"""Counted operations and bytes, against sums on paper."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fasttrain.bench.roofline import CHIPS, Chip, Work, count_work, least_seconds


class OneLayer(nn.Module):
    """Global pooling and one linear layer from 3 to 10."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 10, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(images.mean((2, 3)))


def test_a_linear_layer() -> None:
    network = OneLayer()
    work = count_work(network, px=8, micro_batch=4, accumulate=1, precision="bf16")
    # Forward 4x3 by 3x10; the images need no gradient, so backward has the weight's alone: 10x4 by 4x3.
    assert work.operations == ((2 * 4 * 3 * 10, 2 * (12 + 30 + 40)), (2 * 10 * 4 * 3, 2 * (40 + 12 + 30)))
    assert work.update_bytes == 5 * 4 * 30
    assert next(network.parameters()).device.type == "cpu"


def test_a_convolution() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    work = count_work(network, px=16, micro_batch=2, accumulate=3, precision="fp32")
    forward = 2 * 2 * 16 * 16 * 8 * 3 * 3 * 3
    # Backward here has the weight's gradient alone, of the same cost.
    assert work.flops == 3 * 2 * forward
    assert len(work.operations) == 3 * 2


def test_the_longer_of_arithmetic_and_traffic() -> None:
    chip = Chip({"bf16": 100.0}, 10.0, "by hand")
    work = Work(((1000, 10), (10, 100)), update_bytes=50)
    # 10 s of arithmetic, 10 s of traffic, 5 s of update.
    assert least_seconds(work, chip, "bf16") == pytest.approx(25.0)
    assert least_seconds(work, chip, "fp32") is None


def test_ceilings_name_their_source() -> None:
    assert all("measured" in chip.source and chip.flops_per_s for chip in CHIPS.values())
