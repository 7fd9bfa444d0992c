"""Which back end decodes, and its start."""

from __future__ import annotations

import logging

import torch

from fasttrain.config.schema import RunConfig
from fasttrain.data.backend import Backend
from fasttrain.data.scan import Scan
from fasttrain.data.synthetic_backend import SyntheticBackend
from fasttrain.data.torchvision_backend import TorchvisionBackend
from fasttrain.data.validation import MIN_BATCH
from fasttrain.errors import MachineError, Problem
from fasttrain.stages import Plan

log = logging.getLogger("fasttrain")


def start_backend(config: RunConfig, scan: Scan, plan: Plan, *, device: torch.device, rank: int) -> Backend:
    """Start the back end that ``data.backend`` names.

    ``auto`` is DALI where it is installed and there are files to decode and no ``data.augment``, else torchvision;
    rank 0 says so.
    An installed DALI that does not work on this device is an error, not a reason to be slow.

    Raises:
        MachineError: DALI is asked for and not installed, or does not work here.
    """
    data = config.data
    if data.backend == "synthetic":
        return SyntheticBackend(device=device, seed=config.seed)
    in_memory = scan.train.images is not None
    on_pillow = data.augment != "none"
    if on_pillow and data.backend == "auto" and not in_memory and rank == 0:
        log.info(f"data.backend=auto: torchvision, since data.augment={data.augment} works on Pillow's images")
    if data.backend == "dali" or (data.backend == "auto" and not in_memory and not on_pillow):
        try:
            from fasttrain.data.dali_backend import DaliBackend
        except (ImportError, OSError) as error:  # OSError: a library that it links to is missing
            if data.backend == "dali":
                raise _no_dali(error) from error
            if rank == 0:
                log.info(f"data.backend=auto: torchvision, since DALI cannot be imported ({error})")
        else:
            max_batch = max(MIN_BATCH, plan.largest_micro_batch)
            return DaliBackend(
                device=device,
                workers=data.workers,
                max_batch=max_batch,
                encoded=not in_memory,
                hw_decoder_load=_hw_decoder_load(config, plan, device),
            )
    return TorchvisionBackend(device=device, workers=data.workers)


def _hw_decoder_load(config: RunConfig, plan: Plan, device: torch.device) -> float | None:
    """Share of the files that a GPU's hardware decoder takes; None where it is worth to be measured."""
    from fasttrain.data.dali_stages import HARDWARE_DECODER_LOAD
    from fasttrain.data.dali_tuning import MIN_IMAGES

    given = config.data.hw_decoder_load
    if given != "auto":
        return float(given)
    # With a cache each image is decoded about once.
    once = config.data.cache != "off"
    images = plan.num_train if once else sum(epoch.images for epoch in plan.epochs)
    # The two decoders round differently, so a share that is measured may change pixels from run to run.
    worth_it = device.type == "cuda" and images // plan.world_size >= MIN_IMAGES and not config.deterministic
    return None if worth_it else HARDWARE_DECODER_LOAD


def _no_dali(error: Exception) -> MachineError:
    return MachineError(
        Problem(
            f"data.backend=dali, but DALI cannot be imported: {error}",
            "pip install nvidia-dali-cuda130 (Linux), or data.backend=torchvision",
        )
    )
