"""recipe=cifar10_dawnbench's optimizer against the published script's rules, and the settings made for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasttrain.config.compose import compose_run
from fasttrain.config.schema import RunConfig
from fasttrain.model.build import build_model
from fasttrain.optimizer.build import build_optimizer, hold_on_device, set_hyperparameters
from fasttrain.optimizer.check import check
from fasttrain.optimizer.groups import matrix_parameter_groups, parameter_groups
from fasttrain.optimizer.muon_sgd import MuonSGD, orthogonalise
from fasttrain.schedule.schedule import build_schedule
from fasttrain.stages import build_plan
from tests.optimizer.configs import run_config

BATCH = 2000
STEPS = 200
# airbench94_muon.py: learning rates of a loss that is summed over the batch.
BIAS_LR, HEAD_LR, MUON_LR = 0.053, 0.67, 0.24
DECAY = 2e-6 * BATCH


@pytest.fixture(scope="module")
def config() -> RunConfig:
    run = compose_run(["recipe=cifar10_dawnbench", "data.backend=synthetic"])
    return replace(run.config, trainer=replace(run.config.trainer, precision="fp32"))


def small_network(config: RunConfig) -> nn.Module:
    torch.manual_seed(0)
    network = build_model(replace(config.model, args={"widths": [8, 8, 8]}), 10)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return network


def gradients(network: nn.Module, images: Tensor, labels: Tensor, reduction: str) -> dict[str, Tensor]:
    network.zero_grad()
    logits = network(images)
    F.cross_entropy(logits, labels, label_smoothing=0.2, reduction=reduction).backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def test_each_parameter_is_in_its_group(config: RunConfig) -> None:
    network = build_model(config.model, 10)
    optimizer = build_optimizer(config, network)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    found = {group["name"]: {names[id(p)] for p in group["params"]} for group in optimizer.param_groups}
    convolutions = {f"groups.{i}.conv{k}.weight" for i in range(3) for k in (1, 2)}
    biases = {f"groups.{i}.norm{k}.bias" for i in range(3) for k in (1, 2)}
    assert found == {
        "matrices": convolutions,
        "weights": {"head.weight"},
        "norm_and_bias": biases,
        "norm_and_bias_first_epochs": {"whitening.bias"},
    }


def test_learning_rates_of_all_updates_are_the_published_ones(config: RunConfig) -> None:
    network = build_model(config.model, 10)
    optimizer = build_optimizer(config, network)
    plan = build_plan(config.stages, num_train=50_000, world_size=1, device_batch_size=None, steps_per_stage=None)
    assert plan.total_steps == STEPS
    schedule = build_schedule(config, plan)
    for step in range(STEPS):
        done = plan.epochs_done(step)
        set_hyperparameters(optimizer, lr=schedule.lr(step), momentum=schedule.momentum(step), epochs_done=done)
        left = 1 - step / STEPS
        published = {
            "matrices": (MUON_LR * left, 0.6),
            "weights": (HEAD_LR * BATCH * left, 0.85),
            "norm_and_bias": (BIAS_LR * BATCH * left, 0.85),
            # The script's falls by itself to zero in 3 epochs; here the schedule's fall comes on top.
            "norm_and_bias_first_epochs": (BIAS_LR * BATCH * left * max(0.0, 1 - (step + 1) / 75), 0.85),
        }
        for group in optimizer.param_groups:
            lr, momentum = published[group["name"]]
            assert group["lr"] == pytest.approx(lr, rel=1e-5, abs=1e-9)
            assert group["momentum"] == momentum


def test_two_updates_equal_the_published_rule_with_a_summed_loss(config: RunConfig) -> None:
    """The script's rules written out again, on gradients of the sum, against ours on gradients of the mean."""
    network = small_network(config)
    torch.manual_seed(1)
    images, labels = torch.randn(BATCH, 3, 16, 16), torch.randint(10, (BATCH,))
    optimizer = build_optimizer(config, network)
    theirs = {name: p.detach().clone().double() for name, p in network.named_parameters() if p.requires_grad}
    buffers = {name: torch.zeros_like(value) for name, value in theirs.items()}
    for step in range(2):
        left = 1 - step / STEPS
        summed = gradients(network, images, labels, "sum")
        for name, weight in theirs.items():
            g = summed[name].double()
            if weight.ndim == 4:
                b = buffers[name].mul_(0.6).add_(g)
                update = published_whitening(g + 0.6 * b)
                weight *= math.sqrt(len(weight)) / weight.norm()
                weight -= MUON_LR * left * update
            else:
                lr = HEAD_LR if name == "head.weight" else BIAS_LR
                g = g + DECAY / lr * weight
                b = buffers[name].mul_(0.85).add_(g)
                first = left * (1 - (step + 1) / 75) if name == "whitening.bias" else left
                weight -= lr * first * (g + 0.85 * b)
        mean = gradients(network, images, labels, "mean")
        for name, p in network.named_parameters():
            p.grad = mean.get(name)
        lr = config.optimizer.lr * STEPS / (STEPS + 1) * left
        set_hyperparameters(optimizer, lr=lr, momentum=0.6, epochs_done=(step + 1) / 25)
        optimizer.step()
    for name, expected in theirs.items():
        ours = network.get_parameter(name).detach().double()
        assert float((ours - expected).norm() / expected.norm()) < 2e-4, name


def published_whitening(matrix: Tensor) -> Tensor:
    x = matrix.flatten(1)
    x = x / x.norm()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(3):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return (x.T if tall else x).reshape(matrix.shape)


@pytest.mark.parametrize("on_device", [False, True], ids=["floats", "tensors"])
def test_normalised_weights_have_the_norm_of_the_root_of_rows_before_the_update(on_device: bool) -> None:
    torch.manual_seed(2)
    start = [torch.randn(8, 3, 3, 3), torch.randn(6, 4), torch.zeros(4, 2)]
    params = [nn.Parameter(tensor.clone()) for tensor in start]
    optimizer = MuonSGD([{"params": params}], lr=0.1, momentum=0.0, nesterov=False, normalize_weights=True)
    if on_device:
        hold_on_device(optimizer)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    for param, before in zip(params, start, strict=True):
        (direction,) = orthogonalise([param.grad], steps=3, dtype=torch.float32)  # type: ignore[list-item]
        norm = before.norm()
        scaled = before * math.sqrt(len(before)) / norm if norm > 0 else before
        assert torch.allclose(param, scaled - 0.1 * direction, atol=1e-5)


def test_sgd_keeps_its_own_momentum_through_a_cycle() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    optimizer = build_optimizer(run_config("muon_sgd", sgd_momentum=0.7), network)
    set_hyperparameters(optimizer, lr=0.1, momentum=0.95, epochs_done=1.0)
    assert {group["name"]: group["momentum"] for group in optimizer.param_groups} == {
        "matrices": 0.95,
        "weights": 0.7,
        "norm_and_bias": 0.7,
    }


def test_norm_and_bias_have_their_own_scale_and_decay() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    settings: dict[str, Any] = {"weight_decay": 0.1, "linear_weights": True, "sgd_lr_scale": 10.0}
    settings |= {"sgd_weight_decay": 1e-4}
    own: dict[str, Any] = {"norm_and_bias_lr_scale": 3.0, "norm_and_bias_weight_decay": 1e-3}
    found = [
        {group["name"]: (group["lr_scale"], group["weight_decay"]) for group in groups}
        for groups in (
            matrix_parameter_groups(network, decay_norm_and_bias=True, **settings, **own),
            matrix_parameter_groups(network, decay_norm_and_bias=True, **settings),
            matrix_parameter_groups(network, decay_norm_and_bias=False, **settings),
        )
    ]
    shared = {"matrices": (1.0, 0.1), "weights": (10.0, 1e-4)}
    assert found == [
        {**shared, "norm_and_bias": (3.0, 1e-3)},
        {**shared, "norm_and_bias": (10.0, 1e-4)},
        {**shared, "norm_and_bias": (10.0, 0.0)},
    ]


class TrainsItsBiasFirst(nn.Linear):
    def trained_epochs(self) -> dict[str, float]:
        return {"bias": 2.0}


@pytest.mark.parametrize("kind", ["sgd", "hybrid", "rectified_lars", "torch", "timm"])
def test_what_is_trained_in_the_first_epochs_only_stays_afterwards(kind: str) -> None:
    network = TrainsItsBiasFirst(3, 2)
    optimizer = build_optimizer(run_config(kind), network)
    torch.manual_seed(3)
    moved = []
    for epochs_done in (0.5, 1.5, 2.0, 3.0):
        before = [parameter.detach().clone() for parameter in network.parameters()]
        set_hyperparameters(optimizer, lr=0.1, momentum=0.9, epochs_done=epochs_done)
        for parameter in network.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        moved.append([not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)])
    assert moved == [[True, True], [True, True], [True, False], [True, False]]


def test_a_groups_learning_rate_falls_to_zero_in_its_epochs() -> None:
    groups = parameter_groups(TrainsItsBiasFirst(3, 2), weight_decay=0.1, decay_norm_and_bias=False)
    assert [(g["name"], g.get("trained_epochs")) for g in groups] == [
        ("weights", None),
        ("norm_and_bias_first_epochs", 2.0),
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    rates = []
    for epochs_done in (0.5, 1.0, 2.0, 2.5):
        set_hyperparameters(optimizer, lr=0.8, momentum=0.0, epochs_done=epochs_done)
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert rates == [[0.8, pytest.approx(0.6)], [0.8, pytest.approx(0.4)], [0.8, 0.0], [0.8, 0.0]]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"sgd_momentum": 0.0}, "optimizer.sgd_momentum=0 with optimizer.nesterov=true"),
        (
            {"norm_and_bias_weight_decay": 1e-5},
            "optimizer.norm_and_bias_weight_decay=1e-05, but optimizer.decay_norm_and_bias=false",
        ),
        ({"sgd_momentum": 0.0, "nesterov": False}, None),
        ({"norm_and_bias_weight_decay": 1e-5, "decay_norm_and_bias": True}, None),
    ],
)
def test_what_cannot_go_together(changes: dict[str, Any], what: str | None) -> None:
    problems = check(run_config("muon_sgd", **changes))
    assert [problem.what[: len(what or "")] for problem in problems] == ([] if what is None else [what])
