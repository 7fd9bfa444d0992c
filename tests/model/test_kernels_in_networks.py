"""A ResNet whose stem is fused against timm's own; on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import pytest
import torch
from timm.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn

pytest.importorskip("triton")

from fasttrain.config.schema import KernelsConfig
from fasttrain.model import kernels, norm_relu_pool, pooling
from fasttrain.model.kernels import FusedPoolResNet, use_kernels
from fasttrain.model.pooling import FastMaxPool2d

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

OFF = KernelsConfig(stem="false", batchnorm="false", max_pool="false", norm_relu_pool="false")
FUSED = replace(OFF, norm_relu_pool="auto")
ALONE = replace(OFF, max_pool="auto")


@pytest.fixture(autouse=True)
def on_the_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter the kernels take images on the CPU."""
    if INTERPRETED:
        for module in (kernels, pooling):
            monkeypatch.setattr(module, "can_pool", lambda images: torch.is_grad_enabled())


def networks(options: KernelsConfig) -> tuple[nn.Module, nn.Module]:
    """Timm's network, and the same with ``options``."""
    torch.manual_seed(1)
    plain = ResNet(BasicBlock, (1, 1, 1, 1), num_classes=5)
    for name in ("layer1", "layer2", "layer3", "layer4"):
        setattr(plain, name, nn.Identity())
    plain.fc = nn.Linear(64, 5)
    plain.to(DEVICE, memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    use_kernels(ours, options)
    return plain, ours


def images() -> Tensor:
    values = torch.randn(2, 3, 20, 16, generator=torch.Generator().manual_seed(2))
    return values.to(DEVICE).contiguous(memory_format=torch.channels_last)


def assert_same_training(plain: nn.Module, ours: nn.Module, run: nn.Module | None = None) -> None:
    """Logits, gradients, running statistics and counters of a training step."""
    expected, found = plain(images()), (ours if run is None else run)(images())
    # Convolutions on a GPU may use TF32.
    close = {"rtol": 1e-3, "atol": 1e-4} if INTERPRETED else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(found, expected, **close)
    for logits in (expected, found):
        logits.square().sum().backward()
    wanted = dict(plain.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, **close, msg=lambda text, name=name: name + text)
    assert list(ours.state_dict()) == list(plain.state_dict())
    for (name, found), expected in zip(ours.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(found, expected, **close, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("options", [FUSED, ALONE], ids=["fused", "alone"])
def test_a_training_step_is_timms(options: KernelsConfig) -> None:
    plain, ours = networks(options)
    assert type(ours) is (FusedPoolResNet if options is FUSED else ResNet)
    assert_same_training(plain, ours)


@pytest.mark.parametrize("options", [FUSED, ALONE], ids=["fused", "alone"])
def test_a_compiled_training_step_is_timms(options: KernelsConfig) -> None:
    plain, ours = networks(options)
    compiled = torch.compile(ours, backend="aot_eager_decomp_partition" if INTERPRETED else "inductor", fullgraph=True)
    assert_same_training(plain, ours, compiled)


@pytest.mark.parametrize("options", [FUSED, ALONE], ids=["fused", "alone"])
def test_validation_is_timms_to_the_bit(options: KernelsConfig) -> None:
    plain, ours = networks(options)
    with torch.no_grad():
        assert torch.equal(ours.eval()(images()), plain.eval()(images()))


def test_the_kernels_are_what_runs_in_training_and_not_in_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    original = pooling.launch

    def spy(kernel: str, *arguments: object, norm: bool) -> None:
        launched.append(f"{kernel} {norm}")
        original(kernel, *arguments, norm=norm)  # type: ignore[arg-type]

    for module in (pooling, norm_relu_pool):
        monkeypatch.setattr(module, "launch", spy)
    for options, norm in ((FUSED, True), (ALONE, False), (OFF, None)):
        launched.clear()
        _, ours = networks(options)
        ours.eval()(images()).sum().backward()
        assert launched == []
        ours.train()(images()).sum().backward()
        assert launched == ([] if norm is None else [f"pool {norm}", f"pool_backward {norm}"])


def test_statistics_taken_anew_in_validation_run_the_plain_layers() -> None:
    plain, ours = networks(FUSED)
    for network in (plain, ours):
        network.eval()
        network.bn1.train()
        with torch.no_grad():
            network(images())
    assert torch.equal(ours.bn1.running_mean, plain.bn1.running_mean)
    assert int(ours.bn1.num_batches_tracked) == 1


def test_an_exchanged_batchnorm_is_not_passed_over() -> None:
    _, ours = networks(FUSED)

    class Other(nn.BatchNorm2d):
        called = 0

        def forward(self, input: Tensor) -> Tensor:
            self.called += 1
            return super().forward(input)

    ours.bn1 = Other(64).to(DEVICE)
    ours(images())
    assert ours.bn1.called == 1


def test_a_copy_of_the_network_is_fused_too() -> None:
    _, ours = networks(replace(FUSED, max_pool="auto"))
    again = copy.deepcopy(ours)
    assert type(again) is FusedPoolResNet
    assert type(again.maxpool) is FastMaxPool2d
    assert torch.equal(again(images()), ours(images()))
