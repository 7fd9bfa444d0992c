"""The average of the weights against numbers worked out by hand; settings that cannot go together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import nn

from fasttrain.config.schema import AveragingConfig, StageConfig
from fasttrain.stages import Plan, build_plan
from fasttrain.trainer.averaging import WeightAverage
from fasttrain.trainer.check import check, check_averaging_steps


def averaging(kind: str = "ema", *, half_life: int | None = 32, every: int = 1, start: float = 0) -> AveragingConfig:
    return AveragingConfig(kind=kind, half_life_images=half_life, every_steps=every, from_epoch=start)


def plan_of(*rows: tuple[int, int]) -> Plan:
    """Stages of (epochs, batch size) over 64 images."""
    stages = [StageConfig(epochs=e, px=32, min_area=0.35, batch_size=b, val_px=32) for e, b in rows]
    return build_plan(stages, num_train=64, world_size=1, device_batch_size=None, steps_per_stage=None)


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if not torch.equal(one[key], other[key])]


class Scalar(nn.Module):
    """One weight, one statistic and one counter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64))

    def become(self, value: float) -> None:
        with torch.no_grad():
            self.weight.fill_(value)
        self.mean.fill_(-value)
        self.counter.add_(1)


def follow(config: AveragingConfig, plan: Plan) -> list[float]:
    """The averaged weight after each step of weights 1, 2, 3, ..."""
    network = Scalar()
    average = WeightAverage(network, config, plan)
    seen = []
    for step in range(plan.total_steps):
        network.become(step + 1.0)
        if average.follow(step):
            average.update()
            assert int(average.network.counter) == step + 1
        assert float(average.network.mean) == -float(average.network.weight)
        seen.append(float(average.network.weight))
    return seen


def test_swa_is_the_mean_of_the_weights_that_count() -> None:
    plan = plan_of((2, 16))
    assert follow(averaging("swa", half_life=None), plan) == pytest.approx([1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5])
    # From the third step on, every second one: 3, (3 + 5) / 2, (3 + 5 + 7) / 3.
    seen = follow(averaging("swa", half_life=None, every=2, start=0.5), plan)
    assert seen == pytest.approx([0, 0, 3, 3, 4, 4, 5, 5])


def test_ema_halves_the_share_of_older_weights_every_half_life_whatever_the_batch() -> None:
    # 32 images are two steps of 16, and one of 32.
    older = 0.5**0.5
    expected = [1.0]
    for step in range(1, 4):
        expected.append(older * expected[-1] + (1 - older) * (step + 1))
    for step in range(4, 6):
        expected.append(0.5 * expected[-1] + 0.5 * (step + 1))
    assert follow(averaging(), plan_of((1, 16), (1, 32))) == pytest.approx(expected, rel=1e-6)


def test_ema_of_every_second_step_counts_the_images_of_both() -> None:
    seen = follow(averaging(every=2), plan_of((1, 16)))
    assert seen == pytest.approx([1, 1, 0.5 * 1 + 0.5 * 3, 2])


def test_equal_weights_have_themselves_as_average_to_the_last_digits() -> None:
    """Both shares add up to one in float32, so that many updates do not shrink the weights."""
    network = Scalar()
    average = WeightAverage(network, averaging(half_life=10_000_000), plan_of((100, 4)))
    for step in range(1600):
        network.become(1.0)
        average.follow(step)
        average.update()
    assert float(average.decay) + float(average.share) == 1
    assert float(average.network.weight) == pytest.approx(1, abs=1e-6)


def test_an_average_without_memory_is_the_raw_network_with_its_statistics() -> None:
    network = timm.create_model("test_resnet", num_classes=4)
    # A half-life of one image: after 64 of them nothing of the older weights is left.
    average = WeightAverage(network, averaging(half_life=1), plan_of((4, 64)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(3):
        network(torch.randn(4, 3, 32, 32)).square().sum().backward()
        optimizer.step()
        assert average.follow(step)
        average.update()
    assert any("running_var" in key for key in network.state_dict())
    assert differing(network.state_dict(), average.network.state_dict()) == []
    network.eval()
    average.eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(images), average.network(images))


def test_an_update_touches_fixed_tensors_only() -> None:
    network = timm.create_model("test_resnet", num_classes=4)
    average = WeightAverage(network, averaging(), plan_of((2, 16)))
    places = [value.data_ptr() for value in average.state_dict().values()]
    for step in range(3):
        average.follow(step)
        average.update()
    assert [value.data_ptr() for value in average.state_dict().values()] == places
    assert not any(parameter.requires_grad for parameter in average.parameters())


@pytest.mark.gpu
def test_updates_captured_in_a_graph_follow_the_share() -> None:
    plan = plan_of((2, 16))
    network = Scalar().cuda()
    average = WeightAverage(network, averaging("swa", half_life=None), plan).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        average.follow(0)
        average.update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        average.update()
    seen = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(plan.total_steps):
            network.become(step + 1.0)
            average.follow(step)
            graph.replay()
            seen.append(average.network.weight.detach().clone())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cat(seen).tolist() == pytest.approx([1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5])


def settings(
    averaged: AveragingConfig, *, alpha: float = 0, cutmix: float = 0, bound: int | None = None, jsd: float = 0
) -> Any:
    mixup = SimpleNamespace(alpha=alpha, cutmix_alpha=cutmix, off_epoch=None)
    trainer = SimpleNamespace(averaging=averaged, mixup=mixup, devices=2, num_nodes=1, device_batch_size=bound)
    trainer.jsd_alpha = jsd
    stages = [StageConfig(epochs=4, px=32, min_area=0.35, batch_size=16, val_px=32)]
    return SimpleNamespace(trainer=trainer, stages=stages, data=SimpleNamespace(augment="none"))


def test_settings_that_cannot_go_together() -> None:
    none = averaging("none", half_life=None)
    assert check(settings(none)) == []
    assert check(settings(averaging("ema", start=3.9))) == []
    cases: list[tuple[Any, list[str]]] = [
        (settings(averaging("ema", half_life=None)), ["trainer.averaging.half_life_images=1600"]),
        (settings(averaging("swa")), ["trainer.averaging.half_life_images=null, or trainer.averaging.kind=ema"]),
        (settings(averaging("swa", half_life=None, start=4)), ["trainer.averaging.from_epoch=3"]),
        (
            settings(averaging("none", half_life=None, every=5, start=1)),
            [
                "trainer.averaging.every_steps=1, or trainer.averaging.kind=swa",
                "trainer.averaging.from_epoch=0, or trainer.averaging.kind=swa",
            ],
        ),
        (settings(none, alpha=0.2, bound=1), ["trainer.device_batch_size=8"]),
        (settings(none, cutmix=0.2, bound=2), []),
        (
            settings(none, alpha=0.2, jsd=12),
            [
                "data.augment=augmix-m3-w3, or trainer.jsd_alpha=0",
                "trainer.mixup.alpha=0 trainer.mixup.cutmix_alpha=0, or trainer.jsd_alpha=0",
            ],
        ),
    ]
    for config, fixes in cases:
        assert [problem.fix for problem in check(config)] == fixes


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_an_average_of_one_state_is_refused(kind: str) -> None:
    plan = plan_of((2, 16))
    last = plan.total_steps - 1

    def problems(every: int, start: float = 0, steps_per_stage: int | None = None) -> list[str]:
        config = settings(averaging(kind, every=every, start=start))
        config.trainer.steps_per_stage = steps_per_stage
        return [f"{problem.what} | {problem.fix}" for problem in check_averaging_steps(config, plan)]

    assert problems(1) == problems(last) == []
    (text,) = problems(last + 1)
    assert f"every_steps={last + 1}: the average would hold the weights of fewer than two steps" in text
    assert "| trainer.averaging.every_steps=1" in text
    (text,) = problems(1, start=plan.epochs_done(last - 1))
    assert f"begins at step {last} of {plan.total_steps}" in text
    assert "| trainer.averaging.from_epoch=0 trainer.averaging.every_steps=1" in text
    assert problems(1, start=plan.epochs_done(last - 2)) == []
    assert problems(1000, steps_per_stage=3) == []
