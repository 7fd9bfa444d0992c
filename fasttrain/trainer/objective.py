"""From a batch to the loss: the part of a step that is compiled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fasttrain.data.preprocess import Normalize


class Objective(nn.Module):
    """The network with the normalisation in front of it and the loss behind.

    Args:
        network: float NCHW in channels_last memory in, logits [n, C] out.
        normalize: In front of it.
        label_smoothing: Share of the target spread over all classes.
    """

    def __init__(self, network: nn.Module, normalize: Normalize, *, label_smoothing: float) -> None:
        super().__init__()
        self.network = network
        self.normalize = normalize
        self.label_smoothing = label_smoothing

    def forward(self, images_nhwc: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of one micro-batch, the mean over its images, 0-dim float32.

        Args:
            images_nhwc: uint8, or normalised floating point, [n, h, w, 3].
            labels: int64 [n].
        """
        logits = self.network(self.normalize(images_nhwc))
        return F.cross_entropy(logits.float(), labels, label_smoothing=self.label_smoothing)
