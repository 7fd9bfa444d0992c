"""The stem's convolution on folded images against the plain one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasttrain.config.schema import KernelsConfig
from fasttrain.errors import ConfigError
from fasttrain.model.kernels import use_kernels
from fasttrain.model.stem import FoldedStemConv2d, folded_conv, is_stem

OFF = KernelsConfig(stem="false", batchnorm="false", max_pool="false", norm_relu_pool="false")


def stem(*, everywhere: bool) -> nn.Conv2d:
    torch.manual_seed(1)
    conv = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False).to(memory_format=torch.channels_last)
    use_kernels(nn.Sequential(conv), replace(OFF, stem="true" if everywhere else "auto"))
    return conv


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    return values.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("rows", "columns"), list(product((2, 8), repeat=2)))
@pytest.mark.parametrize(("height", "width"), [(16, 16), (10, 24), (2, 4)])
def test_the_folded_convolution_is_the_plain_one(rows: int, columns: int, height: int, width: int) -> None:
    ours, theirs = (images(2, 3, height, width).requires_grad_() for _ in range(2))
    weight, wanted = (images(5, 3, 7, 7).requires_grad_() for _ in range(2))
    bias = torch.arange(5.0, dtype=torch.float64)
    folded = folded_conv(ours, weight, bias, fold_rows=rows, fold_columns=columns)
    expected = F.conv2d(theirs, wanted, bias, stride=2, padding=3)
    torch.testing.assert_close(folded, expected, rtol=1e-12, atol=1e-12)
    grad = images(*expected.shape)
    folded.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weight.grad, wanted.grad, rtol=1e-12, atol=1e-12)


def test_fp32_and_bf16_differ_by_their_roundings() -> None:
    exact = F.conv2d(images(2, 3, 32, 32), images(8, 3, 7, 7), stride=2, padding=3)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.25)):
        found = folded_conv(images(2, 3, 32, 32).to(dtype), images(8, 3, 7, 7).to(dtype))
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


def test_the_convolution_runs_on_64_channels_in_channels_last_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    original = F.conv2d

    def spy(tensor: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.extend((tensor, weight))
        return original(tensor, weight, bias)

    monkeypatch.setattr(F, "conv2d", spy)
    folded_conv(images(2, 3, 32, 48), images(8, 3, 7, 7))
    assert [tuple(tensor.shape) for tensor in seen] == [(2, 64, 19, 24), (8, 64, 4, 1)]
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_parameters_keep_name_shape_and_values() -> None:
    torch.manual_seed(1)
    plain = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
    ours = stem(everywhere=True)
    assert isinstance(ours, FoldedStemConv2d)
    assert list(ours.state_dict()) == ["weight"]
    assert torch.equal(ours.weight, plain.weight)


def test_auto_on_a_cpu_and_odd_sides_take_the_plain_path() -> None:
    for everywhere, shape in ((False, (2, 3, 16, 16)), (True, (2, 3, 15, 16)), (True, (2, 3, 16, 15))):
        ours, tensor = stem(everywhere=everywhere), images(*shape, dtype=torch.float32)
        assert torch.equal(ours(tensor), F.conv2d(tensor, ours.weight, stride=2, padding=3))


def test_everywhere_folds_in_every_mode() -> None:
    ours, tensor = stem(everywhere=True), images(2, 3, 16, 16, dtype=torch.float32)
    expected = folded_conv(tensor, ours.weight)
    assert torch.equal(ours(tensor), expected)
    assert torch.equal(ours.eval()(tensor), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"in_channels": 4},
        {"kernel_size": 3},
        {"stride": 1},
        {"padding": 2},
        {"dilation": 2},
        {"padding_mode": "reflect"},
    ],
    ids=str,
)
def test_other_convolutions_are_left_alone(changes: dict[str, object]) -> None:
    arguments = {"in_channels": 3, "out_channels": 8, "kernel_size": 7, "stride": 2, "padding": 3} | changes
    network = nn.Sequential(nn.Conv2d(**arguments))  # type: ignore[arg-type]
    assert not is_stem(network[0])
    use_kernels(network, replace(OFF, stem="auto"))
    assert type(network[0]) is nn.Conv2d
    with pytest.raises(ConfigError, match=r"model\.kernels\.stem=true: Sequential has no 7x7"):
        use_kernels(network, replace(OFF, stem="true"))


def test_a_compiled_step_folds_on_any_device_where_it_is_asked_to() -> None:
    ours, tensor = stem(everywhere=True), images(2, 3, 16, 16, dtype=torch.float32)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tensor), folded_conv(tensor, ours.weight), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_compiled_training_on_a_gpu_folds_and_other_runs_do_not() -> None:
    ours, tensor = stem(everywhere=False).cuda(), images(2, 3, 32, 32, dtype=torch.float32).cuda()
    plain = F.conv2d(tensor, ours.weight, stride=2, padding=3)
    assert torch.equal(ours(tensor), plain)
    names = {event.name for event in profiled(torch.compile(ours), tensor)}
    assert any("constant_pad" in name for name in names)
    torch.testing.assert_close(torch.compile(ours)(tensor), plain, rtol=1e-2, atol=1e-2)


def profiled(network: nn.Module, tensor: Tensor) -> list[torch.autograd.profiler_util.FunctionEvent]:
    network(tensor)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        network(tensor)
        torch.cuda.synchronize()
    return list(profile.events())
