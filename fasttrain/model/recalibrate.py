"""BatchNorm's running statistics taken anew, with the weights as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from fasttrain.model.batchnorm import batchnorms


@torch.no_grad()
def recalibrate(networks: Sequence[nn.Module], batches: Iterable[torch.Tensor], *, world_size: int) -> None:
    """Replace the running means and variances by their averages over ``batches`` and ranks.

    Everything but BatchNorm runs as in validation: what dropout takes away in training would be missing from
    the statistics, and no random number is used (torch's update_bn trains all layers). Modes, momenta and
    counters are as before afterwards.

    Args:
        networks: Each gets its own statistics.
        batches: Inputs of the networks, float [n, c, h, w], as many on each rank; each counts alike.
        world_size: Ranks.
    """
    norms = [norm for network in networks for norm in batchnorms(network) if norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    counters = [int(norm.num_batches_tracked) for norm in norms if norm.num_batches_tracked is not None]
    modes = [(module, module.training) for network in networks for module in network.modules()]
    for network in networks:
        network.eval()
    for norm in norms:
        norm.training = True
        norm.reset_running_stats()
    for number, images in enumerate(batches, start=1):
        for norm in norms:
            norm.momentum = 1 / number
        for network in networks:
            network.forward(images)
    for module, training in modes:
        module.training = training
    for norm, momentum, counter in zip(norms, momenta, counters, strict=True):
        norm.momentum = momentum
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.fill_(counter)
        if world_size > 1:
            for statistic in (norm.running_mean, norm.running_var):
                assert statistic is not None
                torch.distributed.all_reduce(statistic)
                statistic.div_(world_size)
