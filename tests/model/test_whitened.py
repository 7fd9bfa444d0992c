"""The network with a whitening first layer: sizes, first weights, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasttrain.config.compose import compose_run
from fasttrain.errors import ConfigError
from fasttrain.model.build import build_model, meta_model
from fasttrain.model.check import check_libraries
from fasttrain.model.whitened import WHITENING_EPS, WhitenedConvNet, whitening_filters
from tests.model.defaults import MODEL

CONFIG = replace(MODEL, name="whitened_convnet")


def build(**arguments: Any) -> WhitenedConvNet:
    network = build_model(replace(CONFIG, args=arguments), 10)
    assert isinstance(network, WhitenedConvNet)
    return network


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # 3x3 convolutions 24-64-64-256-256-256-256, five biases of BatchNorm and the first layer's 24; head 256 x 10.
        (
            "whitened_convnet",
            9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256) + 2 * (64 + 256 + 256) + 24 + 2560,
        ),
        (
            "whitened_convnet_large",
            9 * (24 * 128 + 2 * 128**2 + 128 * 384 + 2 * 384**2 + 384 * 512 + 2 * 512**2)
            + 3 * (128 + 384 + 512)
            + 24
            + 5120,
        ),
        # 54 filters on patches of 3x3 and two of zeros; the head has a bias.
        (
            "whitened_convnet_photo",
            9 * (56 * 128 + 2 * 128**2 + 128 * 256 + 2 * 256**2 + 256 * 512 + 5 * 512**2)
            + 3 * (128 + 256 + 512 + 512)
            + 513 * 10,
        ),
    ],
)
def test_numbers_of_trained_weights(name: str, weights: int) -> None:
    network = meta_model(replace(CONFIG, name=name), 10)
    trained = {key: p for key, p in network.named_parameters() if p.requires_grad}
    assert sum(p.numel() for p in trained.values()) == weights
    frozen = {key for key, _ in network.named_parameters()} - trained.keys()
    norms = {f"{key}.weight" for key, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    first = {"whitening.weight"} | ({"whitening.bias"} if name.endswith("photo") else set())
    assert frozen == {*first, *norms}


@pytest.mark.parametrize("antialias", [False, True])
def test_each_group_halves_the_image(antialias: bool) -> None:
    network = build(antialias=antialias)
    shapes, x = [], torch.randn(2, 24, 32, 32)
    for group in network.groups:
        x = group(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(64, 16, 16), (256, 8, 8), (256, 4, 4)]


def test_a_shift_by_one_pixel_changes_less_with_the_blur() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 24, 41, 41)
    changes = []
    for antialias in (False, True):
        pool = build(antialias=antialias).groups[0].pool
        here, there = (
            pool(images[..., :40, :40].repeat(1, 3, 1, 1)[:, :64]),
            pool(images[..., 1:, 1:].repeat(1, 3, 1, 1)[:, :64]),
        )
        changes.append(float((here - there).square().mean() / here.var()))
    assert changes[1] < 0.7 * changes[0]


@pytest.mark.parametrize("px", [96, 128, 200])
def test_photos_of_any_size(px: int) -> None:
    network = build_model(replace(CONFIG, name="whitened_convnet_photo"), 10)
    assert isinstance(network, WhitenedConvNet)
    images = torch.randn(8, 3, px, px)
    network.initialize_from_images(images)
    assert network(images[:2]).shape == (2, 10)
    # Every second pixel, and the ones beside it.
    assert network.whitening(images[:2]).shape == (2, 56, px // 2, px // 2)
    assert not network.whitening(images[:2])[:, 54:].any()
    answers = network.whitening(images)[:, :27, 1:-1, 1:-1].transpose(0, 1).flatten(1)
    assert torch.allclose(answers @ answers.T / answers.shape[1], torch.eye(27), atol=0.2)


def test_the_first_layers_answers_are_uncorrelated_and_of_unit_size() -> None:
    torch.manual_seed(0)
    # Neighbours alike, channels alike, one channel faint: patches whose directions differ widely in size.
    smooth = F.avg_pool2d(torch.randn(40, 1, 20, 20), 3, stride=1)
    images = torch.cat([smooth, smooth + 0.3 * torch.randn(40, 1, 18, 18), 0.2 * torch.randn(40, 1, 18, 18)], dim=1)
    filters = whitening_filters(images, patch_px=2, eps=0.0)
    answers = F.conv2d(images, filters).transpose(0, 1).flatten(1).double()
    moments = answers @ answers.T / answers.shape[1]
    assert torch.allclose(moments, torch.eye(12, dtype=torch.float64), atol=1e-3)
    # With eps each direction's mean square is v / (v + eps), where v was its own.
    values = torch.linalg.eigvalsh(_patch_moments(images))
    faint = F.conv2d(images, whitening_filters(images, patch_px=2, eps=0.1)).transpose(0, 1).flatten(1).double()
    assert torch.allclose(faint.square().mean(dim=1), values / (values + 0.1), atol=1e-4)


def _patch_moments(images: torch.Tensor) -> torch.Tensor:
    """By hand: each patch as a row of channel, row, column."""
    _, _, height, width = images.shape
    rows = [
        images[n, :, top : top + 2, left : left + 2].reshape(-1).double()
        for n in range(len(images))
        for top in range(height - 1)
        for left in range(width - 1)
    ]
    patches = torch.stack(rows)
    return patches.T @ patches / len(patches)


def test_images_set_each_direction_with_either_sign_and_nothing_else() -> None:
    torch.manual_seed(1)
    network, images = build(), torch.randn(8, 3, 32, 32)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    address = network.whitening.weight.data_ptr()
    network.initialize_from_images(images)
    changed = {key for key, value in network.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"whitening.weight"}
    assert network.whitening.weight.data_ptr() == address
    weight = network.whitening.weight
    assert torch.equal(weight[:12], whitening_filters(images, patch_px=2, eps=WHITENING_EPS))
    assert torch.equal(weight[12:], -weight[:12])
    assert not weight.requires_grad


def test_leading_outputs_of_each_convolution_copy_its_inputs() -> None:
    network = build(widths=[32, 40, 40])
    for group, channels in zip(network.groups, (24, 32, 40), strict=True):
        x = torch.randn(1, channels, 6, 6)
        assert torch.equal(group.conv1(x)[:, :channels], x)  # type: ignore[operator]
    wide = network.groups[0].conv1.weight.detach()[24:]  # type: ignore[union-attr, index]
    # The others keep torch's own first weights: uniform within 1 / sqrt(inputs).
    assert 0 < float(wide.abs().max()) <= (24 * 9) ** -0.5


def test_the_first_logits_are_the_heads_unit_weights_over_the_width() -> None:
    torch.manual_seed(2)
    network = build()
    assert float(network.head.weight.detach().std()) == pytest.approx(1, abs=1e-6)
    seen: list[torch.Tensor] = []
    network.head.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    logits = network(torch.randn(4, 3, 32, 32))
    (features,) = seen
    assert features.shape == (4, 256)
    assert torch.allclose(logits, features @ network.head.weight.T / 256, atol=1e-6)
    assert float(logits.abs().max()) < 1


def test_batchnorm_weighs_the_newest_batch_with_two_fifths() -> None:
    norms = [module for module in build().modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.4, 1e-12)}
    assert len(norms) == 6


@pytest.mark.parametrize("px", [32, 48])
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_of_other_sizes_and_layouts(px: int, channels_last: bool) -> None:
    network, images = build(widths=[8, 8, 8], depth=3, activation="silu"), torch.randn(2, 3, px, px)
    expected = network.eval()(images)
    if channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.to(memory_format=torch.channels_last)
    assert torch.allclose(network(images), expected, atol=1e-5)


def test_a_bias_that_is_not_trained_stays_zero() -> None:
    network = build(whitening_bias_epochs=0)
    assert network.whitening.bias is not None
    assert not network.whitening.bias.any()
    assert not network.whitening.bias.requires_grad
    assert network.trained_epochs() == {}
    assert build().trained_epochs() == {"whitening.bias": 3.0}


@pytest.mark.parametrize(
    "arguments",
    [{"widths": []}, {"depth": 4}, {"activation": "relu"}, {"in_chans": 1}, {"stride": 0}, {"pooling": "mid"}],
)
def test_arguments_that_make_no_network_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**arguments)
    assert f"model.args={{{next(iter(arguments))}: " in str(caught.value)


@pytest.mark.parametrize("name", ["whitened_convnet", "whitened_convnet_large", "whitened_convnet_photo"])
def test_no_channel_is_constant_at_first_and_no_gradient_out_of_proportion(name: str) -> None:
    torch.manual_seed(0)
    network = build_model(replace(CONFIG, name=name), 10)
    assert isinstance(network, WhitenedConvNet)
    images = F.avg_pool2d(torch.randn(16, 3, 64, 64), 5, 1, 2) * 3
    network.initialize_from_images(images)
    constant: dict[str, int] = {}

    def look(key: str, out: torch.Tensor) -> None:
        constant[key] = int((out.std(dim=(0, 2, 3)) < 1e-6).sum())

    convolutions = {key: module for key, module in network.groups.named_modules() if isinstance(module, nn.Conv2d)}
    for key, module in convolutions.items():
        module.register_forward_hook(lambda _, __, out, key=key: look(key, out))
    F.cross_entropy(network.train()(images), torch.arange(16) % 10).backward()
    assert constant == dict.fromkeys(convolutions, 0)
    norms = [float(module.weight.grad.norm()) for module in convolutions.values() if module.weight.grad is not None]
    assert len(norms) == len(convolutions)
    assert max(norms) < 100 * min(norms)


@pytest.mark.parametrize(
    "arguments", [{"widths": [0]}, {"patch_px": 64}, {"stride": 71}, {"patch_px": 0}, {"whitening_bias_epochs": -1.0}]
)
def test_sizes_that_make_no_network_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        build(**arguments)


def test_images_too_small_for_the_groups_are_refused_with_sizes_that_work() -> None:
    config = compose_run(
        [
            "recipe=quickstart",
            "model.name=whitened_convnet",
            "model.args={widths: [8, 8, 8, 8, 8, 8, 8]}",
            "stages=[{epochs: 1, px: 32, min_area: 1, batch_size: 8, val_px: 32}]",
        ]
    ).config
    (problem,) = check_libraries(config, 10)
    assert "does not take images of 32 x 32 pixels" in problem.what
    assert problem.fix.startswith("stages.0.px=")
