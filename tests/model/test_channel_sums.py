"""The kernel of BatchNorm's sums against float64; on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")

from fasttrain.model import moments

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (3, 64, 8, 9), (1, 300, 2, 2), (2, 256, 9, 9)], ids=str)
def test_sums_are_those_of_float64(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several chunks, the last one not full, in a test's few pixels.
    monkeypatch.setattr(moments, "NUM_PROGRAMS", 3)
    monkeypatch.setattr(moments, "BLOCK_VALUES", 1024)
    channels = shape[1]
    generator = torch.Generator().manual_seed(1)
    images = (torch.randn(shape, generator=generator) + 4).to(dtype).to(DEVICE)
    sums = torch.ops.fasttrain.channel_sums(images.contiguous(memory_format=torch.channels_last))
    distance = images.double() - images[:1, :, :1, :1].double()
    assert sums.shape[1:] == (2, channels)
    expected = torch.stack([distance.sum((0, 2, 3)), distance.square().sum((0, 2, 3))])
    torch.testing.assert_close(sums.double().sum(0), expected, rtol=1e-5, atol=1e-4)
    mean, var = moments.moments(images)
    torch.testing.assert_close(mean.double(), images.double().mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(var.double(), images.double().var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-5)


def test_traced_shapes_are_the_real_ones() -> None:
    images = torch.randn(2, 8, 5, 6, device=DEVICE).contiguous(memory_format=torch.channels_last)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.fasttrain.channel_sums.default, (images,), test_utils=checks)


@pytest.mark.parametrize(
    ("num_pixels", "channels"), [(1024 * 48 * 48, 64), (1024 * 24 * 24, 256), (1024 * 9, 2048), (1, 3), (7, 1000)]
)
def test_chunks_cover_all_pixels_once(num_pixels: int, channels: int) -> None:
    num_chunks, chunk_pixels, block_pixels, block_channels = moments._chunks(num_pixels, channels)
    assert chunk_pixels % block_pixels == 0
    assert (num_chunks - 1) * chunk_pixels < num_pixels <= num_chunks * chunk_pixels
    assert block_pixels * block_channels == moments.BLOCK_VALUES
    assert num_chunks * -(-channels // block_channels) <= max(moments.NUM_PROGRAMS, channels)
