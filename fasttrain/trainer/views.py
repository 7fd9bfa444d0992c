"""Test-time augmentation: the mean of a network's logits over several views of each validation image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NONE = "none"

# How far the shifted views lie from the image, pixels.
SHIFT_PX = 1


@dataclass(frozen=True)
class Logits:
    """Of one batch, fp32 [n, classes].

    Attributes:
        counting: Those whose accuracy counts.
        plain: Of the images themselves.
    """

    counting: Tensor
    plain: Tensor


def predict(network: Callable[[Tensor], Tensor], images_nchw: Tensor, kind: str) -> Logits:
    """The logits of the images as they are, and their weighted mean over the views of ``kind``.

    One view at a time: validation needs no more memory than without.

    Args:
        network: Images to logits.
        images_nchw: Normalised images.
        kind: ``none``, ``flip`` or ``flip_shift``.
    """
    plain = network(images_nchw).float()
    counting: Tensor | None = None
    for weight, view in views(images_nchw, kind):
        logits = plain if view is images_nchw else network(view).float()
        counting = weight * logits if counting is None else counting.add_(logits, alpha=weight)
    assert counting is not None
    return Logits(counting=plain if kind == NONE else counting, plain=plain)


def views(images_nchw: Tensor, kind: str) -> Iterator[tuple[float, Tensor]]:
    """Weight and pixels of each view; the weights add up to one, and the images themselves come first.

    ``flip``: the image and its mirror image, half each. ``flip_shift``: these two have a quarter each; the image
    moved by one pixel up and left, and down and right, over a border that mirrors it, and the mirror images of
    both, have an eighth each (airbench94_muon.py, its highest level).
    """
    if kind == NONE:
        yield 1.0, images_nchw
        return
    share = 0.5 if kind == "flip" else 0.25
    yield share, images_nchw
    yield share, images_nchw.flip(-1)
    if kind == "flip_shift":
        for moved in shifted(images_nchw):
            yield share / 2, moved
            yield share / 2, moved.flip(-1)


def shifted(images_nchw: Tensor) -> list[Tensor]:
    """The images moved up and left, and down and right, by ``SHIFT_PX``, in the memory layout of the images."""
    height, width = images_nchw.shape[-2:]
    padded = F.pad(images_nchw, (SHIFT_PX,) * 4, mode="reflect")
    crops = [padded[..., first : first + height, first : first + width] for first in (2 * SHIFT_PX, 0)]
    return [crop.contiguous(memory_format=torch.channels_last) for crop in crops]
