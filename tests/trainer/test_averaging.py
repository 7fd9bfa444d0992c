"""Averaged weights: the numbers, the files, and a resume that loses nothing."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import nn

from fasttrain.cli import main
from fasttrain.config.schema import AveragingConfig, StageConfig
from fasttrain.model.weights import read_state_dict
from fasttrain.stages import Plan, build_plan
from fasttrain.trainer.averaging import WeightAverage
from fasttrain.trainer.check import check
from fasttrain.trainer.module import ClassifierModule

Train = Callable[..., int]
EMA = ["trainer.averaging.kind=ema", "trainer.averaging.half_life_images=32"]


def averaging(kind: str = "ema", *, half_life: int | None = 32, every: int = 1, start: float = 0) -> AveragingConfig:
    return AveragingConfig(kind=kind, half_life_images=half_life, every_steps=every, from_epoch=start)


def plan_of(*rows: tuple[int, int]) -> Plan:
    """Stages of (epochs, batch size) over 64 images."""
    stages = [StageConfig(epochs=e, px=32, min_area=0.35, batch_size=b, val_px=32) for e, b in rows]
    return build_plan(stages, num_train=64, world_size=1, device_batch_size=None, steps_per_stage=None)


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


def checkpoint(run_dir: Path, name: str = "last") -> dict[str, Any]:
    return torch.load(run_dir / "checkpoints" / f"{name}.ckpt", weights_only=True)  # type: ignore[no-any-return]


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if not torch.equal(one[key], other[key])]


def columns(run_dir: Path) -> list[tuple[str, ...]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [(row["step"], row["train_loss"], row["top1"], row["top5"]) for row in csv.DictReader(file)]


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


def test_both_weights_are_saved_validated_and_shown(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", *EMA) == 0
    shown = capsys.readouterr().out
    assert shown.count("(raw weights: top1 ") == 3
    saved, best = checkpoint(run_dir), run_dir / "checkpoints" / "best.ckpt"
    assert differing(saved["state_dict"], saved["state_dict_ema"])
    result = json.loads((run_dir / "report" / "result.json").read_text())
    assert result["weights"] == "averaged"
    out = tmp_path / "eval.json"
    assert main(["eval", str(run_dir / "checkpoints" / "last.ckpt"), "--json", str(out)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "N=32" in line]
    assert ["averaged weights" in line for line in lines] == [True, False]
    assert "raw weights" in lines[1]
    figures = json.loads(out.read_text())
    assert figures["weights"] == "averaged"
    assert figures["top1"] == pytest.approx(result["top1"], abs=1e-3)
    assert {"raw_top1", "raw_top5"} <= figures.keys()
    # The best checkpoint is that of the best accuracy of the averaged weights.
    rows = saved["callbacks"]["ReportCallback"]["rows"]
    top1 = [row["top1"] for row in rows]
    assert checkpoint(run_dir, "best")["fasttrain"]["step"] == rows[top1.index(max(top1))]["step"]
    # timm and a new run take the averaged weights.
    network = timm.create_model("test_resnet", num_classes=16, checkpoint_path=str(best))
    assert differing(network.state_dict(), checkpoint(run_dir, "best")["state_dict_ema"]) == []
    assert differing(read_state_dict(str(best)), checkpoint(run_dir, "best")["state_dict_ema"]) == []


def test_training_is_the_same_with_and_without_an_average(train_tiny: Train, tmp_path: Path) -> None:
    assert train_tiny(f"run_dir={tmp_path / 'plain'}") == 0
    assert train_tiny(f"run_dir={tmp_path / 'averaged'}", *EMA) == 0
    plain, averaged = checkpoint(tmp_path / "plain"), checkpoint(tmp_path / "averaged")
    assert differing(plain["state_dict"], averaged["state_dict"]) == []
    assert "state_dict_ema" not in plain


@pytest.mark.parametrize("step", [2, 4, 5, 8])
@pytest.mark.parametrize(
    "settings",
    [
        [*EMA, "model.batchnorm.recalibrate_images=32"],
        ["trainer.averaging.kind=swa", "trainer.averaging.from_epoch=1.25", "trainer.averaging.every_steps=2"],
    ],
    ids=["ema", "swa"],
)
def test_a_resumed_average_is_the_straight_ones_to_the_bit(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], step: int
) -> None:
    straight, run_dir = tmp_path / "straight", tmp_path / "run"
    assert train_tiny(f"run_dir={straight}", *settings) == 0
    original = ClassifierModule.on_train_batch_end

    def hook(self: ClassifierModule, *args: Any) -> None:
        original(self, *args)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ClassifierModule, "on_train_batch_end", hook)
        assert train_tiny(f"run_dir={run_dir}", *settings) == 143
    assert train_tiny(f"run_dir={run_dir}", *settings, "resume=auto") == 0
    for name in ("last", "best"):
        one, other = checkpoint(straight, name), checkpoint(run_dir, name)
        assert one["fasttrain"]["step"] == other["fasttrain"]["step"]
        for part in ("state_dict", "state_dict_ema"):
            assert differing(one[part], other[part]) == []
    assert columns(straight) == columns(run_dir)
    scores = [checkpoint(path)["callbacks"]["Checkpoints"]["best_accuracy"] for path in (straight, run_dir)]
    assert scores[0] == scores[1] is not None


def test_a_checkpoint_without_averaged_weights_cannot_go_on_with_them(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", "trainer.steps_per_stage=2") == 0
    previous = run_dir / "checkpoints" / "previous.ckpt"
    again = [f"run_dir={tmp_path / 'again'}", f"resume={previous}", "trainer.steps_per_stage=2", *EMA]
    assert train_tiny(*again) == 2
    error = capsys.readouterr().err
    assert "has no averaged weights" in error
    assert "trainer.averaging.kind=none, or trainer.averaging.from_epoch=0.5 or later" in error


def test_an_average_that_begins_later_is_the_raw_network_until_then(train_tiny: Train, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    late = ["trainer.averaging.kind=swa", "trainer.averaging.from_epoch=2"]
    assert train_tiny(f"run_dir={run_dir}", *late) == 0
    before, after = checkpoint(run_dir, "previous"), checkpoint(run_dir)
    assert differing(before["state_dict"], before["state_dict_ema"]) == []
    assert differing(after["state_dict"], after["state_dict_ema"])
    rows = after["callbacks"]["ReportCallback"]["rows"]
    assert [row["raw_top1"] == row["top1"] for row in rows[:2]] == [True, True]


def settings(averaged: AveragingConfig, *, alpha: float = 0, cutmix: float = 0, bound: int | None = None) -> Any:
    mixup = SimpleNamespace(alpha=alpha, cutmix_alpha=cutmix)
    trainer = SimpleNamespace(averaging=averaged, mixup=mixup, devices=2, num_nodes=1, device_batch_size=bound)
    stages = [StageConfig(epochs=4, px=32, min_area=0.35, batch_size=16, val_px=32)]
    return SimpleNamespace(trainer=trainer, stages=stages)


def test_settings_that_cannot_go_together() -> None:
    none = averaging("none", half_life=None)
    assert check(settings(none)) == []
    assert check(settings(averaging("ema", start=3.9))) == []
    cases: list[tuple[Any, list[str]]] = [
        (settings(averaging("ema", half_life=None)), ["trainer.averaging.half_life_images=1600"]),
        (settings(averaging("swa")), ["trainer.averaging.half_life_images=null, or trainer.averaging.kind=ema"]),
        (settings(averaging("swa", half_life=None, start=4)), ["trainer.averaging.from_epoch=3"]),
        (settings(none, alpha=0.2, bound=1), ["trainer.device_batch_size=8"]),
        (settings(none, cutmix=0.2, bound=2), []),
    ]
    for config, fixes in cases:
        assert [problem.fix for problem in check(config)] == fixes


def test_all_problems_are_told_at_once(train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["trainer.mixup.alpha=-1", "trainer.averaging.kind=mean"]
    assert train_tiny(f"run_dir={tmp_path / 'run'}", *wrong) == 2
    error = capsys.readouterr().err
    assert "trainer.mixup.alpha=-1: expected" in error
    assert "trainer.averaging.kind=mean: expected" in error
    wrong = ["trainer.averaging.kind=swa", "trainer.averaging.from_epoch=3", "model.batchnorm.ghost_size=5"]
    assert train_tiny(f"run_dir={tmp_path / 'run'}", *wrong) == 2
    error = capsys.readouterr().err
    assert "trainer.averaging.from_epoch=3: the average would begin after the run's 3 epochs" in error
    assert "model.batchnorm.ghost_size=5: does not divide" in error
