"""Mixup and CutMix: each image of a step is blended with its neighbour in the batch, and so are their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fasttrain.config.schema import MixupConfig

# Sets these random numbers apart from those that order the images, which have the same kind of key.
STREAM = 1 << 63


@dataclass(frozen=True)
class Mix:
    """How the images of a step are mixed.

    Attributes:
        inside: An image's own share inside the box; outside it is 1.
        top, bottom, left, right: Of the box, pixels.
        label_share: An image's own share of its target.
    """

    inside: float
    top: int
    bottom: int
    left: int
    right: int
    label_share: float


def draw_mix(config: MixupConfig, *, seed: int, epoch: int, step: int, px: int) -> Mix:
    """Draw for one step, the same for all its micro-batches and ranks.

    Args:
        config: Parameters of the beta distributions, and from which epoch on each image stays as it is.
        seed: The run's.
        epoch: Zero-based, of the recipe.
        step: Zero-based, in the epoch.
        px: Side of the images.

    Source: arXiv:1710.09412 (mixup), arXiv:1905.04899, section 3.1 (CutMix); a fair coin between them as in timm.
    """
    if config.off_epoch is not None and epoch >= config.off_epoch:
        return Mix(1.0, 0, px, 0, px, 1.0)
    key = np.array([seed, STREAM | epoch << 32 | step], dtype=np.uint64)
    random = np.random.Generator(np.random.Philox(key=key))
    coin, *center = random.random(3)
    cut = config.cutmix_alpha > 0 and (config.alpha == 0 or coin < 0.5)
    alpha = config.cutmix_alpha if cut else config.alpha
    share = float(random.beta(alpha, alpha))
    if not cut:
        return Mix(share, 0, px, 0, px, share)
    half = px * float(np.sqrt(1 - share)) / 2
    (top, bottom), (left, right) = (
        (round(max(0.0, middle - half)), round(min(float(px), middle + half))) for middle in (c * px for c in center)
    )
    return Mix(0.0, top, bottom, left, right, 1 - (bottom - top) * (right - left) / px**2)


class Mixing(nn.Module):
    """Owns the numbers of the step on the device; ``set`` fills them in, all else only reads them there.

    So a captured step follows each step's draw. An image's neighbour is the one before it in its micro-batch, the
    first one's the last: batches of any size work. timm's Mixup draws from numpy's global state, changes its
    lambda in the kernels' arguments, and takes even batches only.

    Args:
        config: Parameters of the beta distributions.
    """

    numbers: torch.Tensor

    def __init__(self, config: MixupConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("numbers", torch.zeros(6), persistent=False)

    def set(self, mix: Mix) -> None:
        """Mix the next images like this; without a host sync."""
        values = [mix.inside, mix.top, mix.bottom, mix.left, mix.right, mix.label_share]
        host = torch.tensor(values, dtype=torch.float32)
        if self.numbers.is_cuda:
            host = host.pin_memory()
        self.numbers.copy_(host, non_blocking=True)

    def images(self, images: torch.Tensor) -> torch.Tensor:
        """Floating-point images [n, c, h, w], blended."""
        inside, top, bottom, left, right, _ = self.numbers.unbind()
        rows = torch.arange(images.shape[2], device=images.device)[:, None]
        columns = torch.arange(images.shape[3], device=images.device)
        in_box = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        own = torch.where(in_box, inside, torch.ones_like(inside))
        return images * own + images.roll(1, 0) * (1 - own)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float) -> torch.Tensor:
        """Cross-entropy with the blended targets: logits [n, classes, ...], labels int64 [n, ...].

        Cross-entropy is linear in the target, so it is the blend of both labels' losses.
        """
        share = self.numbers[5]
        own = F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
        other = F.cross_entropy(logits, labels.roll(1, 0), label_smoothing=label_smoothing)
        return share * own + (1 - share) * other
