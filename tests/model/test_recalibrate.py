"""Running statistics taken anew, against averages worked out by hand."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from fasttrain.model.batchnorm import batchnorms
from fasttrain.model.ghost import use_groups
from fasttrain.model.recalibrate import recalibrate


def one_pixel(values: list[float]) -> torch.Tensor:
    """Images of one channel and one pixel."""
    return torch.tensor(values, dtype=torch.float32)[:, None, None, None]


@pytest.mark.parametrize("ghost", [False, True], ids=["plain", "ghost"])
def test_statistics_are_the_mean_over_batches(ghost: bool) -> None:
    norm = nn.BatchNorm2d(1, momentum=0.3)
    network = nn.Sequential(norm)
    if ghost:
        use_groups([norm], 2)
    network(one_pixel([100, 200]))
    recalibrate([network], [one_pixel([1, 3]), one_pixel([10, 30]), one_pixel([4, 4])], world_size=1)
    # Means 2, 20, 4; unbiased variances 2, 200, 0. What was there before is gone.
    assert float(norm.running_mean) == pytest.approx(26 / 3)
    assert float(norm.running_var) == pytest.approx(202 / 3)
    assert (norm.momentum, int(norm.num_batches_tracked), norm.training) == (0.3, 1, True)


def test_each_network_gets_its_own_statistics_without_dropout_or_random_numbers() -> None:
    networks = []
    for factor in (1.0, 2.0):
        network = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Dropout(0.9), nn.BatchNorm2d(1))
        nn.init.constant_(network[0].weight, factor)
        networks.append(network)
    before = torch.get_rng_state()
    recalibrate(networks, [one_pixel([1, 3])], world_size=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert [float(network[2].running_mean) for network in networks] == pytest.approx([2, 4])
    assert [float(network[2].running_var) for network in networks] == pytest.approx([2, 8])


def test_weights_modes_and_counters_are_as_before() -> None:
    network = timm.create_model("test_resnet", num_classes=4)
    network.layer1.eval()
    modes = [module.training for module in network.modules()]
    weights = {key: value.clone() for key, value in network.state_dict().items() if "running" not in key}
    recalibrate([network], [torch.randn(4, 3, 32, 32)] * 2, world_size=1)
    assert [module.training for module in network.modules()] == modes
    after = network.state_dict()
    assert [key for key in weights if not torch.equal(weights[key], after[key])] == []
    assert all(bool((norm.running_mean != 0).any()) for norm in batchnorms(network))
