"""Networks that set first weights by looking at training images."""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fasttrain.trainer.module import ClassifierModule


@runtime_checkable
class InitializedFromImages(Protocol):
    """A network that wants to see training images before it is trained.

    Attributes:
        num_initial_images: How many.
    """

    num_initial_images: int

    def initialize_from_images(self, images_nchw: Tensor) -> None:
        """Set first weights, in place, from normalised training images on the network's device."""
        ...


class InitializeFromImages(Callback):
    """Shows such a network the first images of the training split when training starts.

    Acts after the warm-up has restored the weights and the clock has started: reading these images counts. Not for
    a run that goes on from a checkpoint or starts from given weights. The images are those with the lowest indices,
    without augmentation, at the px of the first epoch; with several ranks, rank 0's weights become everybody's.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ClassifierModule)
        network = cast(InitializedFromImages, pl_module.network)
        num_images = min(network.num_initial_images, pl_module.plan.num_train)
        images_nhwc = pl_module.data_path.first_train_images(num_images, pl_module.plan.epochs[0].px)
        with torch.no_grad():
            network.initialize_from_images(pl_module.objective.normalize(images_nhwc))
        pl_module.share_weights()
