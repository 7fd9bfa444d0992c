"""The changes to BatchNorm against numbers worked out by hand, and where they cannot be had."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from fasttrain.config.schema import ModelConfig, StageConfig
from fasttrain.errors import ConfigError
from fasttrain.model.batchnorm import apply_options, batchnorms, synchronised
from fasttrain.model.build import build_model
from fasttrain.model.check import check, check_libraries
from fasttrain.optimizer.groups import parameter_groups, with_batchnorm_bias_lr
from tests.model.defaults import MODEL, OWN


def model_config(name: str, **options: Any) -> ModelConfig:
    return replace(MODEL, name=name, batchnorm=replace(OWN, **options))


def run(
    name: str, batch_sizes: list[int], *, px: int = 96, bound: int | None = None, devices: int = 1, **options: Any
) -> Any:
    stages = [StageConfig(epochs=1, px=px, min_area=0.25, batch_size=b, val_px=px) for b in batch_sizes]
    trainer = SimpleNamespace(device_batch_size=bound, devices=devices, num_nodes=1)
    return SimpleNamespace(model=model_config(name, **options), stages=stages, trainer=trainer)


def one_pixel(values: list[float]) -> torch.Tensor:
    """Images of one channel and one pixel."""
    return torch.tensor(values, dtype=torch.float32)[:, None, None, None]


def test_ghost_groups_have_their_own_statistics_and_the_running_ones_their_mean() -> None:
    norm = nn.BatchNorm2d(1, eps=1e-12)
    apply_options(nn.Sequential(norm), replace(OWN, ghost_size=2, momentum=0.5))
    # Means 2 and 20, unbiased variances 2 and 200.
    output = norm(one_pixel([1, 3, 10, 30]))
    assert output.flatten().tolist() == pytest.approx([-1, 1, -1, 1], abs=1e-5)
    assert float(norm.running_mean) == pytest.approx(0.5 * 0 + 0.5 * 11)
    assert float(norm.running_var) == pytest.approx(0.5 * 1 + 0.5 * 101)
    norm(one_pixel([5, 5, 7, 7]))
    assert float(norm.running_mean) == pytest.approx(0.5 * 5.5 + 0.5 * 6)
    assert int(norm.num_batches_tracked) == 2
    norm.eval()
    shown = norm(one_pixel([5.75]))
    assert float(shown.detach()) == pytest.approx(0, abs=1e-6)


def test_ghost_batchnorm_equals_plain_batchnorm_of_each_group_with_its_gradients() -> None:
    torch.manual_seed(0)
    layer = BatchNormAct2d(3, inplace=False)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    plain = nn.BatchNorm2d(3)
    plain.load_state_dict(layer.state_dict())
    apply_options(nn.Sequential(layer), replace(OWN, ghost_size=4))
    images = torch.randn(12, 3, 5, 5, requires_grad=True)
    same = images.detach().clone().requires_grad_()
    expected = torch.cat([plain(group).relu() for group in same.split(4)])
    weights = torch.randn(12, 3, 5, 5)
    (layer(images) * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(layer(images), expected, atol=1e-6)
    assert torch.allclose(images.grad, same.grad, atol=1e-6)
    assert torch.allclose(layer.weight.grad, plain.weight.grad, atol=1e-4)


def test_one_group_of_the_whole_batch_is_plain_batchnorm() -> None:
    torch.manual_seed(0)
    plain, ghost = (build_model(model_config("test_resnet", ghost_size=size), 10) for size in (None, 8))
    ghost.load_state_dict(plain.state_dict())
    images = torch.randn(8, 3, 32, 32)
    assert torch.equal(plain(images), ghost(images))
    for key, value in plain.state_dict().items():
        assert torch.equal(value, ghost.state_dict()[key]), key
    assert {type(norm).__name__ for norm in batchnorms(ghost)} == {"GhostBatchNorm2d"}
    with pytest.raises(ValueError, match="9 images does not divide into groups of 8"):
        ghost(torch.randn(9, 3, 32, 32))


def test_ghost_batchnorm_compiles_as_a_whole() -> None:
    torch.manual_seed(0)
    plain, compiled = (build_model(model_config("test_resnet", ghost_size=4), 10) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    images = torch.randn(8, 3, 32, 32)
    whole = torch.compile(compiled, backend="eager", fullgraph=True, dynamic=False)
    assert torch.allclose(whole(images), plain(images), atol=1e-6)
    for key, value in plain.state_dict().items():
        assert torch.allclose(value.double(), compiled.state_dict()[key].double(), atol=1e-6), key


@pytest.mark.parametrize(
    ("batch_sizes", "bound", "devices", "ghost_size", "fixes"),
    [
        ([64, 32], None, 1, 32, []),
        ([64, 48], None, 1, 32, ["model.batchnorm.ghost_size=16"]),
        ([64], 16, 1, 32, ["model.batchnorm.ghost_size=16"]),
        ([64], None, 4, 12, ["model.batchnorm.ghost_size=8"]),
        ([7, 8], None, 1, 4, ["model.batchnorm.ghost_size=null"]),
        # 64 images over 3 ranks are the stage table's own problem.
        ([64], None, 3, 32, []),
    ],
)
def test_groups_divide_what_a_device_takes_at_once(
    batch_sizes: list[int], bound: int | None, devices: int, ghost_size: int, fixes: list[str]
) -> None:
    config = run("resnet18d", batch_sizes, bound=bound, devices=devices, ghost_size=ghost_size)
    problems = check(config)
    assert [problem.fix for problem in problems] == fixes
    assert all("does not divide the images that a device takes at once" in problem.what for problem in problems)


def test_frozen_scale_trains_the_bias_only() -> None:
    model = build_model(model_config("test_resnet", frozen_scale=0.25), 10)
    for norm in batchnorms(model):
        assert set(norm.weight.tolist()) == {0.25}
        assert (norm.weight.requires_grad, norm.bias.requires_grad) == (False, True)
    model(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(norm.weight.grad is None and norm.bias.grad is not None for norm in batchnorms(model))
    grouped = {id(p) for g in parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False) for p in g["params"]}
    assert not grouped & {id(norm.weight) for norm in batchnorms(model)}


def test_biases_of_batchnorm_have_their_own_learning_rate() -> None:
    with torch.device("meta"):
        model = build_model(model_config("resnet50"), 1000)
    groups = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False, norm_and_bias_lr_scale=0.5)
    assert with_batchnorm_bias_lr(groups, model, 1.0) is groups
    parted = with_batchnorm_bias_lr(groups, model, 64.0)
    # 53 scales and the classifier's bias stay; 53 biases of BatchNorm leave.
    assert {g["name"]: (len(g["params"]), g["weight_decay"], g["lr_scale"]) for g in parted} == {
        "weights": (54, 0.1, 1.0),
        "norm_and_bias": (54, 0.0, 0.5),
        "batchnorm_bias": (53, 0.0, 32.0),
    }
    biases = {id(norm.bias) for norm in batchnorms(model)}
    assert {id(parameter) for parameter in parted[-1]["params"]} == biases


def test_without_batchnorm_every_option_is_refused_at_once() -> None:
    given: dict[str, Any] = {
        "momentum": 0.2,
        "eps": 1e-3,
        "ghost_size": 4,
        "frozen_scale": 0.25,
        "bias_lr_scale": 64.0,
        "sync": True,
        "recalibrate_images": 64,
    }
    fixes = [
        "model.batchnorm.momentum=null",
        "model.batchnorm.eps=null",
        "model.batchnorm.ghost_size=null",
        "model.batchnorm.frozen_scale=null",
        "model.batchnorm.bias_lr_scale=1",
        "model.batchnorm.sync=false",
        "model.batchnorm.recalibrate_images=0",
    ]
    problems = check_libraries(run("test_vit", [8], px=160, **given), 10)
    assert [problem.fix for problem in problems] == fixes
    assert problems[-1].what == "model.batchnorm.recalibrate_images=64: test_vit has no BatchNorm"
    with pytest.raises(ConfigError) as caught:
        build_model(model_config("test_vit", **given), 10)
    assert [problem.fix for problem in caught.value.problems] == fixes
    assert check_libraries(run("test_vit", [8], px=160), 10) == []


def test_options_that_exclude_each_other() -> None:
    told = [p.fix for p in check(run("resnet18d", [8], frozen_scale=0.25, zero_init_last=True))]
    assert told == ["model.batchnorm.zero_init_last=null"]
    told = [p.fix for p in check(run("resnet18d", [8], ghost_size=4, sync=True))]
    assert told == ["model.batchnorm.sync=false"]
    config = run("resnet18d", [8], frozen_scale=0.25)
    config.model = replace(config.model, pretrained=True)
    assert [p.fix for p in check(config)] == ["model.batchnorm.frozen_scale=null"]


def test_groups_are_for_the_layers_that_have_them() -> None:
    # LeViT normalises linear layers too, with BatchNorm1d.
    (problem,) = check_libraries(run("levit_128s", [8], px=224, ghost_size=4), 10)
    assert problem.what == "model.batchnorm.ghost_size=4: not for layers of the kind BatchNorm1d"
    assert problem.fix == "model.batchnorm.ghost_size=null"


def test_synchronised_statistics_only_where_several_ranks_have_gpus() -> None:
    model = build_model(model_config("efficientnet_b0"), 10)
    before = model.state_dict().keys()
    for world_size, device_type, words in ((1, "cuda", "one rank"), (2, "cpu", "on a CPU")):
        same, note = synchronised(model, world_size=world_size, device_type=device_type)
        assert same is model
        assert words in note
        assert not any(isinstance(norm, nn.SyncBatchNorm) for norm in batchnorms(model))
    synced, note = synchronised(model, world_size=2, device_type="cuda")
    assert note == ""
    assert batchnorms(synced)
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in batchnorms(synced))
    assert synced.state_dict().keys() == before


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("resnet50", {}),
        ("resnet50d", {}),
        ("resnet50", {"aa_layer": "blurpool"}),
        ("resnetblur50", {}),
        ("resnet26d", {}),
    ],
    ids=["resnet50", "resnet50d", "resnet50-blurpool", "resnetblur50", "resnet26d"],
)
def test_the_variants_build_and_step_with_every_option(name: str, args: dict[str, Any]) -> None:
    options: dict[str, Any] = {"ghost_size": 2, "frozen_scale": 0.25, "momentum": 0.2, "eps": 1e-4}
    model = build_model(replace(model_config(name, **options), args=args), 10)
    weights = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in weights)
    assert any(not torch.equal(p, old) for p, old in zip(weights, before, strict=True))
    assert ("blurpool" in str(args) or "blur" in name) == any("Blur" in type(m).__name__ for m in model.modules())
