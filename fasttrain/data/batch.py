"""What the data path hands to the trainer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

# What the network computes in, by trainer.precision.
COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Batch:
    """Images and classes of one forward pass, on the device.

    Attributes:
        images_nhwc: [n, h, w, 3]: uint8, or floating point where the data path has normalised them already.
        labels: int64 [n].
        num_valid: How many of the leading images count: n in training; fewer, even 0, in validation, where
            the last batch is filled up so that all ranks see the same shapes.
    """

    images_nhwc: torch.Tensor
    labels: torch.Tensor
    num_valid: int


def to_device(values: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """An array on the device, in the order of its work; the host waits for nothing."""
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor
