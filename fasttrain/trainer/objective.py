"""From a batch to the loss: the part of a step that is compiled."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from timm.loss import JsdCrossEntropy
from torch import nn

from fasttrain.data.preprocess import Normalize
from fasttrain.model.ensemble import Ensemble
from fasttrain.trainer.mixing import Mixing


class Objective(nn.Module):
    """The network with the normalisation in front of it and the loss behind.

    Args:
        network: float NCHW in channels_last memory in, logits [n, C] out, of an ensemble [n, C, members].
        normalize: In front of it.
        label_smoothing: Share of the target spread over all classes.
        mixing: Mixup of the images; None where it is off.
        num_views: Images of each sample in a micro-batch; more than one are taught to agree.
        jsd_alpha: Weight of their divergence.
    """

    def __init__(
        self,
        network: nn.Module,
        normalize: Normalize,
        *,
        label_smoothing: float,
        mixing: Mixing | None = None,
        num_views: int = 1,
        jsd_alpha: float = 0.0,
    ) -> None:
        super().__init__()
        self.network = network
        self.normalize = normalize
        self.label_smoothing = label_smoothing
        self.mixing = mixing
        self.num_views = num_views
        self.jsd = JsdCrossEntropy(num_views, jsd_alpha, label_smoothing) if num_views > 1 else None

    @property
    def networks(self) -> list[nn.Module]:
        """Those that learn as if alone: an ensemble's members, else the one."""
        return list(self.network.members) if isinstance(self.network, Ensemble) else [self.network]

    def forward(self, images_nhwc: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of a micro-batch, the mean over its images, 0-dim float32; of mixed images with mixed targets.

        With several views of each image it is that of the plain ones, and the divergence of all is added. Of an
        ensemble it is the sum of the members' losses: each learns as if it were alone.

        Args:
            images_nhwc: uint8, or normalised floating point, [n, h, w, 3].
            labels: int64 [n].
        """
        images = self.normalize(images_nhwc)
        if self.jsd is not None:
            return cast(torch.Tensor, self.jsd(self.network(images).float(), labels))
        logits = self.network(images if self.mixing is None else self.mixing.images(images)).float()
        members = logits.shape[2] if logits.ndim == 3 else 1
        if members > 1:
            labels = labels[:, None].expand(-1, members)
        if self.mixing is not None:
            return members * self.mixing.loss(logits, labels, label_smoothing=self.label_smoothing)
        return members * F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
