"""Accuracy of a network on a validation set, outside training."""

from __future__ import annotations

import torch
from torch import nn

from fasttrain.data.path import DataPath
from fasttrain.data.preprocess import Normalize
from fasttrain.trainer.meters import AccuracyMeter
from fasttrain.trainer.views import predict


@torch.inference_mode()
def evaluate(
    network: nn.Module,
    normalize: Normalize,
    data: DataPath,
    *,
    px: int,
    rectangular: bool,
    device: torch.device,
    dtype: torch.dtype,
    test_time_augmentation: str,
) -> tuple[int, int, int]:
    """Counts of correct top-1 and top-5 answers and of images, on one rank.

    Args:
        px: Short side of the validation images, pixels.
        dtype: Of autocast; torch.float32 for none.
        test_time_augmentation: See ``views``; the counts are with it.
    """
    network.eval()
    meter = AccuracyMeter(device)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        for batch in data.val_batches(px, rectangular=rectangular):
            logits = predict(network, normalize(batch.images_nhwc), test_time_augmentation)
            meter.add(logits.counting, batch.labels, batch.num_valid)
    correct1, correct5, count = (int(value) for value in meter.counts)
    return correct1, correct5, count
