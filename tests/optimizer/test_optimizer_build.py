"""Optimizers from a config: settings, moving numbers, state, loss scaling."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fasttrain.errors import ConfigError
from fasttrain.optimizer.build import build_optimizer, hold_on_device, set_hyperparameters
from fasttrain.optimizer.momentum_sgd import MomentumSGD
from tests.optimizer.configs import run_config

OWN = ["hybrid", "rectified_lars", "muon_sgd"]
KINDS = ["sgd", *OWN, "torch", "timm"]


def small_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 5),
        nn.Linear(5, 4),
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    scaler: torch.amp.GradScaler | None = None,
    poisoned: int | None = None,
) -> None:
    """Steps on images that depend on the step alone; one of them can have an infinite loss."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(16, 3, 6, 6, generator=generator)
        labels = torch.randint(4, (16,), generator=generator)
        set_hyperparameters(optimizer, lr=0.02 + 0.001 * step, momentum=0.9 - 0.01 * step, epochs_done=step / 10)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        if step == poisoned:
            loss = loss * float("inf")
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return all(torch.equal(a[key], b[key]) for key in a)


def tensors_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Averages and moving numbers, in the order of the parameters and groups."""
    averages = [
        tensor for group in optimizer.param_groups for p in group["params"] for tensor in optimizer.state[p].values()
    ]
    return averages + [group[key] for group in optimizer.param_groups for key in type(optimizer).moving]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_and_follows_the_moving_numbers(kind: str) -> None:
    model = small_network()
    before = small_network()
    optimizer = build_optimizer(run_config(kind), model)
    train(model, optimizer, range(3))
    assert not same(model, before)
    assert all(torch.isfinite(param).all() for param in model.parameters())
    scales = {"rectified_lars": [1.0, 0.2], "muon_sgd": [1.0, 10.0, 10.0]}.get(kind, [1.0, 1.0])
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.022 * scale for scale in scales])
    for group in optimizer.param_groups:
        moved = group["momentum"] if "momentum" in group else group["betas"][0]
        assert moved == pytest.approx(0.88)


@pytest.mark.parametrize(("kind", "on_device"), [(kind, False) for kind in KINDS] + [(kind, True) for kind in OWN])
def test_state_round_trip_is_exact(kind: str, on_device: bool) -> None:
    config = run_config(kind)
    straight, resumed = small_network(), small_network(seed=1)
    optimizer = build_optimizer(config, straight)
    again = build_optimizer(config, resumed)
    if on_device:
        hold_on_device(optimizer)
        hold_on_device(again)
    train(straight, optimizer, range(6))
    resumed.load_state_dict(straight.state_dict())
    again.load_state_dict(through_a_file(optimizer.state_dict()))
    # Six of the steps are before the hybrid's share is 1, at epoch 1.25, some of these after it.
    train(straight, optimizer, range(6, 16))
    train(resumed, again, range(6, 16))
    assert same(straight, resumed)


def test_a_loaded_state_brings_averages_and_keeps_this_configs_settings() -> None:
    model = small_network()
    old = build_optimizer(run_config("hybrid", weight_decay=0.1, rms_lr=1e-3), model)
    train(model, old, range(3))
    new = build_optimizer(run_config("hybrid", weight_decay=0.2, rms_lr=2e-3), model)
    new.load_state_dict(old.state_dict())
    assert [group["weight_decay"] for group in new.param_groups] == [0.2, 0.0]
    assert {group["rms_lr"] for group in new.param_groups} == {2e-3}
    assert new.param_groups[0]["rms_weight"] == pytest.approx(1 - 0.99**3)
    assert len(new.state) == len(list(model.parameters()))


@pytest.mark.parametrize("kind", OWN)
def test_loading_keeps_the_tensors_that_a_captured_step_knows(kind: str) -> None:
    config = run_config(kind)
    model, fresh = small_network(), small_network()
    optimizer = build_optimizer(config, model)
    hold_on_device(optimizer)
    empty, weights = through_a_file(optimizer.state_dict()), through_a_file(model.state_dict())
    train(model, optimizer, range(3))
    known = tensors_of(optimizer)
    optimizer.load_state_dict(empty)
    model.load_state_dict(weights)
    # As new: the steps before the load left no trace.
    other = build_optimizer(config, fresh)
    hold_on_device(other)
    train(model, optimizer, range(3))
    train(fresh, other, range(3))
    assert same(model, fresh)
    assert all(one is another for one, another in zip(known, tensors_of(optimizer), strict=True))


def test_a_state_saved_with_tensors_loads_into_floats() -> None:
    model = small_network()
    optimizer = build_optimizer(run_config("hybrid"), model)
    hold_on_device(optimizer)
    train(model, optimizer, range(3))
    other = build_optimizer(run_config("hybrid"), model)
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    for group in other.param_groups:
        assert all(type(group[key]) is float for key in type(optimizer).moving)
        assert group["rms_weight"] == pytest.approx(1 - 0.99**3)


@pytest.mark.parametrize("kind", ["sgd", *OWN])
def test_loss_scaling_changes_nothing_and_an_infinite_step_is_skipped(kind: str) -> None:
    plain, scaled = small_network(), small_network()
    train(plain, build_optimizer(run_config(kind), plain), range(4))
    optimizer = build_optimizer(run_config(kind), scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    train(scaled, optimizer, range(4), scaler)
    # A power of two as the scale is exact.
    assert same(plain, scaled)
    weights = [param.detach().clone() for param in scaled.parameters()]
    train(scaled, optimizer, range(4, 5), scaler, poisoned=4)
    assert all(torch.equal(a, b) for a, b in zip(weights, scaled.parameters(), strict=True))
    assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("kind", OWN)
def test_numbers_held_as_tensors_are_filled_in_place(kind: str) -> None:
    optimizer = build_optimizer(run_config(kind), small_network())
    hold_on_device(optimizer)
    group = optimizer.param_groups[0]
    held = {key: group[key] for key in type(optimizer).moving}
    assert all(isinstance(value, torch.Tensor) and value.ndim == 0 for value in held.values())
    set_hyperparameters(optimizer, lr=0.25, momentum=0.5, epochs_done=1.0)
    assert all(group[key] is value for key, value in held.items())
    assert (float(group["lr"]), float(group["momentum"])) == (0.25, 0.5)
    if kind == "hybrid":
        assert float(group["sgd_share"]) == 0.5


@pytest.mark.parametrize("kind", OWN)
def test_tensors_and_floats_give_the_same_run_up_to_rounding(kind: str) -> None:
    by_float, by_tensor = small_network(), small_network()
    train(by_float, build_optimizer(run_config(kind), by_float), range(10))
    optimizer = build_optimizer(run_config(kind), by_tensor)
    hold_on_device(optimizer)
    train(by_tensor, optimizer, range(10))
    for one, other in zip(by_float.parameters(), by_tensor.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", OWN)
def test_a_closure_and_a_parameter_without_gradient(kind: str) -> None:
    model = small_network()
    unused = model[5].bias
    before = unused.detach().clone()
    optimizer = build_optimizer(run_config(kind), model)

    def closure() -> torch.Tensor:
        loss = model(torch.ones(4, 3, 6, 6)).square().sum()
        loss.backward()
        unused.grad = None
        return loss

    assert optimizer.step(closure).item() > 0
    assert torch.equal(unused, before)
    assert unused not in optimizer.state


def test_own_settings_reach_their_groups() -> None:
    (weights, others) = build_optimizer(run_config("rectified_lars"), small_network()).param_groups
    assert (weights["trust"], others["trust"]) == (True, False)
    assert (weights["eta"], weights["min_trust_ratio"], weights["max_trust_ratio"]) == (8e-4, 1e-5, 1.0)
    config = run_config("muon_sgd", newton_schulz_steps=5, newton_schulz_dtype="bf16", weight_decay=0.02)
    matrices, rest, _ = build_optimizer(config, small_network()).param_groups
    assert (matrices["newton_schulz_steps"], matrices["newton_schulz_dtype"]) == (5, "bf16")
    # The convolution and the inner linear layer; the last linear layer is the classifier.
    assert [tuple(param.shape) for param in matrices["params"]] == [(8, 3, 3, 3), (5, 128)]
    assert [tuple(param.shape) for param in rest["params"]] == [(4, 5)]
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.02, 1e-4)


def test_momentum_starts_where_the_cycle_does() -> None:
    config = run_config("sgd", momentum=0.0)
    config.schedule = SimpleNamespace(momentum=SimpleNamespace(high=0.98, low=0.9))
    assert build_optimizer(config, small_network()).param_groups[0]["momentum"] == 0.98


def test_sgd_is_torchs_and_multi_tensor_on_a_cpu() -> None:
    optimizer = build_optimizer(run_config("sgd"), small_network())
    assert type(optimizer) is torch.optim.SGD
    assert (optimizer.defaults["foreach"], optimizer.defaults["fused"]) == (True, False)


@pytest.mark.gpu
def test_sgd_on_a_gpu_is_the_one_whose_momentum_moves_in_a_captured_step() -> None:
    optimizer = build_optimizer(run_config("sgd"), small_network().cuda())
    assert type(optimizer) is MomentumSGD
    hold_on_device(optimizer)
    held = [group[key] for group in optimizer.param_groups for key in ("lr", "momentum")]
    set_hyperparameters(optimizer, lr=0.25, momentum=0.5, epochs_done=1.0)
    assert [float(number) for number in held] == [0.25, 0.5] * 2


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("first", [torch.optim.SGD, MomentumSGD])
def test_torchs_sgd_and_the_own_one_go_on_from_each_others_state(first: Any, momentum: float) -> None:
    def build(kind: Any, model: nn.Module) -> torch.optim.Optimizer:
        return kind(model.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01, nesterov=momentum != 0)

    second = MomentumSGD if first is torch.optim.SGD else torch.optim.SGD
    straight, handed = small_network(), small_network(seed=1)
    optimizer, other = build(first, straight), build(second, handed)
    for step in range(6):
        if step == 3:
            handed.load_state_dict(straight.state_dict())
            other.load_state_dict(through_a_file(optimizer.state_dict()))
        for model, chosen in ((straight, optimizer), (handed, other)):
            if model is straight or step >= 3:
                chosen.zero_grad()
                model(torch.ones(4, 3, 6, 6)).square().sum().mul(0.01).backward()
                chosen.step()
    assert same(straight, handed)


def test_named_optimizers_get_momentum_as_their_first_beta_and_their_arguments() -> None:
    config = run_config("torch", args={"eps": 1e-6, "betas": [0.9, 0.95]})
    optimizer = build_optimizer(config, small_network())
    assert type(optimizer) is torch.optim.AdamW
    assert (optimizer.defaults["eps"], optimizer.defaults["betas"]) == (1e-6, (0.9, 0.95))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [5e-5, 0.0]
    rms = build_optimizer(run_config("torch", name="RMSprop"), small_network())
    assert rms.param_groups[0]["momentum"] == 0.9
    ahead = build_optimizer(run_config("timm", name="lookahead_radam"), small_network())
    assert type(ahead).__name__ == "Lookahead"


def test_what_a_library_refuses_is_told_in_our_words() -> None:
    with pytest.raises(ConfigError, match="optimizer=muon_sgd"):
        build_optimizer(run_config("torch", name="Muon"), small_network())
    with pytest.raises(ConfigError, match=r"optimizer\.args\.eps=-1"):
        build_optimizer(run_config("torch", args={"eps": -1}), small_network())
