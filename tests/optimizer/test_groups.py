"""Which parameters decay and which are matrices, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fasttrain.optimizer.groups import matrix_parameter_groups, parameter_groups


def network(name: str, num_classes: int = 1000) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, num_classes=num_classes)


def counts(groups: list[dict[str, Any]]) -> dict[str, tuple[int, float, float]]:
    return {group["name"]: (len(group["params"]), group["weight_decay"], group["lr_scale"]) for group in groups}


def test_no_batchnorm_weight_and_no_bias_of_resnet50_decays() -> None:
    model = network("resnet50")
    groups = parameter_groups(model, weight_decay=5e-5, decay_norm_and_bias=False)
    # 53 convolutions and one linear weight; 53 BatchNorms with scale and bias, and one linear bias.
    assert counts(groups) == {"weights": (54, 5e-5, 1.0), "norm_and_bias": (107, 0.0, 1.0)}
    decaying = {id(param) for param in groups[0]["params"]}
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            assert not {id(module.weight), id(module.bias)} & decaying
    assert sum(param.numel() for group in groups for param in group["params"]) == 25_557_032
    assert all(param.ndim in (2, 4) for param in groups[0]["params"])


def test_decay_norm_and_bias_changes_the_number_not_the_groups() -> None:
    groups = parameter_groups(network("resnet50"), weight_decay=5e-5, decay_norm_and_bias=True)
    assert counts(groups) == {"weights": (54, 5e-5, 1.0), "norm_and_bias": (107, 5e-5, 1.0)}


def test_lr_scale_of_norm_and_bias() -> None:
    groups = parameter_groups(
        network("resnet18d"), weight_decay=1e-4, decay_norm_and_bias=False, norm_and_bias_lr_scale=0.2
    )
    assert {name: scale for name, (_, _, scale) in counts(groups).items()} == {"weights": 1.0, "norm_and_bias": 0.2}


def test_what_timm_lists_does_not_decay() -> None:
    model = network("vit_tiny_patch16_224", num_classes=10)
    (weights, others) = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False)
    spared = {id(param) for param in others["params"]}
    assert {id(model.pos_embed), id(model.cls_token), id(model.norm.weight)} <= spared
    # Patch embedding, 4 weights in each of 12 blocks, the classifier.
    assert len(weights["params"]) == 1 + 4 * 12 + 1


def test_a_norm_with_weights_of_several_dimensions_does_not_decay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.LayerNorm([4, 6, 6]))
    (weights, others) = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False)
    assert (len(weights["params"]), len(others["params"])) == (1, 2)


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    groups = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False)
    assert [len(group["params"]) for group in groups] == [1, 1]


# 53 convolutions of ResNet-50, stem and shortcuts included; ResNeXt-50 has 16 with groups; EfficientNet-B0
# has 81 convolutions of which 16 are depthwise; ViT-tiny the patch embedding and 4 linear weights a block.
@pytest.mark.parametrize(
    ("name", "linear_weights", "num_matrices", "num_weights"),
    [
        ("resnet50", True, 53, 1),
        ("resnext50_32x4d", True, 37, 17),
        ("efficientnet_b0", True, 65, 17),
        ("vit_tiny_patch16_224", True, 49, 1),
        ("vit_tiny_patch16_224", False, 1, 49),
        ("resnetv2_50", True, 53, 1),
    ],
)
def test_matrices(name: str, linear_weights: bool, num_matrices: int, num_weights: int) -> None:
    model = network(name)
    groups = matrix_parameter_groups(
        model,
        weight_decay=0.02,
        linear_weights=linear_weights,
        sgd_lr_scale=10,
        sgd_weight_decay=1e-4,
        decay_norm_and_bias=False,
    )
    found = counts(groups)
    assert found["matrices"] == (num_matrices, 0.02, 1.0)
    assert found["weights"] == (num_weights, 1e-4, 10)
    assert found["norm_and_bias"][1:] == (0.0, 10)
    assert [group["matrix"] for group in groups] == [True, False, False]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    head = model.get_classifier().weight
    assert any(head is param for param in groups[1]["params"])
