"""Which layers the options of ``model.kernels`` find, and what is said where there are none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import nn

from fasttrain.config.schema import KernelsConfig
from fasttrain.errors import ConfigError
from fasttrain.model.check import asked_gpu_kernels, check, check_libraries
from fasttrain.model.kernels import FusedPoolResNet, use_kernels
from fasttrain.model.moments import FastBatchNorm2d
from fasttrain.model.pooling import FastMaxPool2d, can_pool, is_pool
from fasttrain.model.stem import FoldedStemConv2d
from fasttrain.trainer.resume_check import HARMLESS
from tests.model.defaults import KERNELS, MODEL
from tests.model.test_model_check import run, told

KEYS = ("stem", "batchnorm", "max_pool", "norm_relu_pool")
AUTO = KERNELS


def found(name: str, options: KernelsConfig = AUTO) -> list[bool]:
    """Whether a network of timm has a folded stem, BatchNorm by sums, the faster pooling, and that fused."""
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=10)
    names = list(network.state_dict())
    use_kernels(network, options)
    assert list(network.state_dict()) == names
    kinds = {type(module) for module in network.modules()}
    return [kind in kinds for kind in (FoldedStemConv2d, FastBatchNorm2d, FastMaxPool2d, FusedPoolResNet)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50", [True, True, True, True]),
        ("resnet50d", [False, True, True, True]),
        ("densenet121", [True, False, True, False]),
        ("resnetblur50", [True, True, False, False]),
        ("vit_tiny_patch16_224", [False, False, False, False]),
    ],
)
def test_layers_that_are_found(name: str, expected: list[bool]) -> None:
    assert found(name) == expected


def test_false_leaves_every_layer_as_it_is() -> None:
    off = KernelsConfig(stem="false", batchnorm="false", max_pool="false", norm_relu_pool="false")
    assert found("resnet50", off) == [False, False, False, False]
    assert found("resnet50", replace(off, norm_relu_pool="auto")) == [False, False, False, True]


@pytest.mark.parametrize("key", KEYS)
def test_true_for_a_network_without_such_layers_is_refused(key: str) -> None:
    options = replace(AUTO, **{key: "true"})
    with pytest.raises(ConfigError, match=rf"model\.kernels\.{key}=true: VisionTransformer has no"):
        found("vit_tiny_patch16_224", options)
    problems = check_libraries(run(name="vit_tiny_patch16_224", kernels=options), 10)
    assert f"model.kernels.{key}=true: VisionTransformer has no" in told(problems)
    assert f"model.kernels.{key}=auto" in told(problems)


@pytest.mark.parametrize("key", ["batchnorm", "max_pool", "norm_relu_pool"])
def test_kernels_that_only_a_gpu_has_are_refused_without_one(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run(name="resnet18", kernels=replace(AUTO, **{key: "true"}))
    assert asked_gpu_kernels(config) == [key]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert f"model.kernels.{key}=true needs a CUDA device" in told(check_libraries(config, 10))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert check_libraries(config, 10) == []
    config.trainer.accelerator = "cpu"
    assert "needs a CUDA device" in told(check_libraries(config, 10))
    config.trainer.accelerator = "gpu"
    monkeypatch.setattr("fasttrain.model.pooling.HAS_TRITON", False)
    assert "needs the package triton" in told(check_libraries(config, 10))


def test_kernels_of_a_gpu_need_channels_last_memory() -> None:
    config = run(kernels=replace(AUTO, max_pool="true"))
    assert check(config) == []
    config.trainer.channels_last = False
    assert "model.kernels.max_pool=true needs trainer.channels_last=true" in told(check(config))
    assert check(replace_model(config, AUTO)) == []


def replace_model(config: Any, kernels: KernelsConfig) -> Any:
    return SimpleNamespace(model=replace(MODEL, kernels=kernels), stages=config.stages, trainer=config.trainer)


def test_batchnorm_by_sums_needs_compilation() -> None:
    config = run(kernels=replace(AUTO, batchnorm="true"))
    assert check(config) == []
    config.trainer.compile = False
    assert "model.kernels.batchnorm=true needs trainer.compile=true" in told(check(config))


def test_images_on_a_cpu_are_not_for_the_kernels() -> None:
    images = torch.zeros(2, 3, 8, 8, requires_grad=True).to(memory_format=torch.channels_last)
    assert not can_pool(images)
    pool = nn.MaxPool2d(3, 2, 1)
    use_kernels(nn.Sequential(pool), AUTO)
    assert torch.equal(pool(images), torch.zeros(2, 3, 4, 4))


@pytest.mark.parametrize("changes", [{"kernel_size": 2}, {"stride": 1}, {"ceil_mode": True}, {"dilation": 2}], ids=str)
def test_other_poolings_are_left_alone(changes: dict[str, Any]) -> None:
    assert is_pool(nn.MaxPool2d(3, 2, 1))
    assert is_pool(nn.MaxPool2d((3, 3), (2, 2), (1, 1)))
    assert not is_pool(nn.MaxPool2d(**({"kernel_size": 3, "stride": 2, "padding": 1} | changes)))


def test_a_resume_may_change_them() -> None:
    assert {f"model.kernels.{key}" for key in KEYS} <= set(HARMLESS)
