"""A small run with hand-written figures: three epochs of two stages, 50 validation images."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from fasttrain.config.schema import MomentumCycleConfig, RunConfig, SGDConfig, StageConfig
from fasttrain.report.callback import ReportCallback
from fasttrain.report.clock import Clock
from fasttrain.report.facts import RunFacts
from fasttrain.report.machine import Machine
from fasttrain.stages import EpochPlan, Plan
from fasttrain.trainer.results import EpochResult

SETTINGS: dict[str, Any] = {
    "recipe": "tiny",
    "seed": 7,
    "deterministic": True,
    "stages": [
        StageConfig(epochs=2, px=32, min_area=0.25, batch_size=16, val_px=48),
        StageConfig(epochs=1, px=48, min_area=0.5, batch_size=8, val_px=48, rectangular_val=True),
    ],
    "target": {"metric": "top1", "value": 80.0, "stop": False},
    "data": {"kind": "imagefolder", "backend": "torchvision"},
    "model": {"name": "resnet18"},
    "optimizer": {
        "kind": "sgd",
        "lr": 0.5,
        "momentum": 0.9,
        "weight_decay": 5e-5,
        "decay_norm_and_bias": False,
        "nesterov": True,
    },
    "schedule": {"kind": "linear", "warmup_epochs": 1.0, "end_lr": 0.001, "scale_with_batch": False},
    "trainer": {"num_nodes": 1, "devices": 1, "precision": "bf16", "compile": False, "label_smoothing": 0.1},
    "report": {"author": "An Author", "author_email": "author@example.org"},
}


def build(schema: type, values: Mapping[str, Any]) -> Any:
    """A settings class from the values given; fields that are not given have their default or None."""
    hints = get_type_hints(schema)
    known: dict[str, Any] = {}
    for each in fields(schema):
        kind = next((a for a in get_args(hints[each.name]) if a is not NoneType), hints[each.name])
        value = values.get(each.name)
        if is_dataclass(kind) and kind is not MomentumCycleConfig and not isinstance(value, list):
            kind = SGDConfig if each.name == "optimizer" else kind
            known[each.name] = build(kind, value or {})  # type: ignore[arg-type]
        elif each.name in values or each.default is MISSING:
            known[each.name] = value
    return schema(**known)


def make_config(**changes: Any) -> RunConfig:
    """The settings of the small run, with rooms changed by ``room={key: value}``."""
    settings = dict(SETTINGS)
    for room, values in changes.items():
        known = settings.get(room)
        settings[room] = {**known, **values} if isinstance(known, dict) else values
    return build(RunConfig, settings)


def make_plan() -> Plan:
    """Epochs 1 and 2 at 32 px with 4 steps of 16 images, epoch 3 at 48 px with 8 steps of 8."""
    common = {"accumulate": 1, "val_px": 48}
    first = {"stage": 0, "px": 32, "min_area": 0.25, "batch_size": 16, "rectangular_val": False, **common}
    second = {"stage": 1, "px": 48, "min_area": 0.5, "batch_size": 8, "rectangular_val": True, **common}
    epochs = (
        EpochPlan(epoch=0, steps=4, full_steps=4, first_step=0, recipe_epoch=0, **first),
        EpochPlan(epoch=1, steps=4, full_steps=4, first_step=4, recipe_epoch=1, **first),
        EpochPlan(epoch=2, steps=8, full_steps=8, first_step=8, recipe_epoch=2, **second),
    )
    return Plan(epochs=epochs, num_train=64, world_size=1, recipe_epochs=3)


# Correct top-1 and top-5 answers out of 50 after each epoch.
CORRECT = ((10, 30), (40, 45), (39, 48))


def make_results() -> list[EpochResult]:
    """What the three epochs give; the first has too few steps for images/s."""
    plan = make_plan()
    timed = ((0, 0.0), (64, 2.0), (24, 1.5))
    return [
        EpochResult(
            epoch=epoch.epoch + 1,
            step=epoch.first_step + epoch.steps,
            train_loss=2.5 - epoch.epoch,
            top1=2.0 * correct1,
            top5=2.0 * correct5,
            correct1=correct1,
            correct5=correct5,
            num_val=50,
            lr=0.5 / (1 + epoch.epoch),
            momentum=0.9,
            px=epoch.px,
            batch_size=epoch.batch_size,
            images=64,
            stage=epoch.stage,
            skipped_steps=0,
            rate_images=images,
            rate_seconds=seconds,
        )
        for epoch, (correct1, correct5), (images, seconds) in zip(plan.epochs, CORRECT, timed, strict=True)
    ]


MACHINE = Machine(
    hardware="1 x NVIDIA H200",
    num_devices=1,
    versions={"python": "3.11.2", "fasttrain": "0.1.0", "torch": "2.14.1"},
    commit="0123abc",
    command="python train.py recipe=tiny optimizer.lr=0.5",
)


class Time:
    """A steady clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeTrainer:
    """What the callback reads of Lightning's trainer."""

    def __init__(self, *, rank: int = 0, epoch: int = 0, step: int = 0) -> None:
        self.is_global_zero = rank == 0
        self.current_epoch = epoch
        self.global_step = step
        self.sanity_checking = False


class FakeModule:
    def __init__(self) -> None:
        self.last_epoch: EpochResult | None = None


class TinyRun:
    """Drives a ReportCallback through the hooks that Lightning calls, with a clock that moves by hand.

    Process start to training 20 s; each epoch 10 s, its validation 3 s, its checkpoint 2 s; what Lightning
    does after the last one 5 s.

    Args:
        facts: The run.
        rank: Of this process.
        results: What its epochs give; by default ``make_results()``.
    """

    def __init__(self, facts: RunFacts, *, rank: int = 0, results: Sequence[EpochResult] | None = None) -> None:
        self.time = Time()
        self.clock = Clock(100.0, now=self.time)
        self.report = ReportCallback(facts, self.clock)
        self.rank = rank
        self.results = make_results() if results is None else results
        self.module: Any = FakeModule()

    def start(self, *, epoch: int = 0) -> None:
        step = (0, 4, 8, 16)[epoch]
        trainer: Any = FakeTrainer(rank=self.rank, epoch=epoch, step=step)
        self.report.on_fit_start(trainer, self.module)
        self.time.now += 20
        self.report.on_train_start(trainer, self.module)

    def epoch(self, index: int) -> None:
        """Train and validate one epoch (zero-based), up to its row."""
        trainer: Any = FakeTrainer(rank=self.rank, epoch=index)
        self.report.on_train_epoch_start(trainer, self.module)
        self.time.now += 10
        self.report.on_validation_start(trainer, self.module)
        self.time.now += 3
        self.module.last_epoch = self.results[index]
        self.report.on_validation_end(trainer, self.module)
        self.report.on_train_epoch_end(trainer, self.module)

    def checkpoint(self) -> dict[str, Any]:
        """What the checkpoint holds of the report; through JSON, so that plain types are all there is."""
        with self.clock.paused("checkpoint"):
            self.time.now += 2
            return json.loads(json.dumps(self.report.state_dict()))

    def end(self) -> dict[str, Any]:
        """Training has ended; the result."""
        trainer: Any = FakeTrainer(rank=self.rank)
        self.report.on_train_end(trainer, self.module)
        self.time.now += 5
        return self.report.finish()

    def whole(self) -> dict[str, Any]:
        """All epochs and the end; the result."""
        self.start()
        for index in range(len(self.results)):
            self.epoch(index)
            self.checkpoint()
        return self.end()


PLAN_JSON = {
    "schema": 1,
    "source": "scan",
    "stages": [
        {
            "epochs": 2,
            "px": 32,
            "min_area": 0.25,
            "batch_size": 16,
            "accumulate": 1,
            "val_px": 48,
            "steps_per_epoch": 4,
        },
        {
            "epochs": 1,
            "px": 48,
            "min_area": 0.5,
            "batch_size": 8,
            "accumulate": 1,
            "val_px": 48,
            "steps_per_epoch": 8,
        },
    ],
    "total_steps": 16,
    "total_epochs": 3,
    "num_train": 64,
    "num_val": 50,
    "num_classes": 10,
    "world_size": 1,
    "lr": [0.5 - 0.03 * step for step in range(16)],
    "px": [32, 32, 48],
    "batch_size": [16, 16, 8],
}

CONFIG_YAML = """\
recipe: tiny
seed: {seed}
run_dir: {run_dir}
stages:
- {{epochs: 2, px: 32}}
- {{epochs: 1, px: 48}}
optimizer: {{lr: {lr}}}
report: {{cost_per_hour: null, author: '<An Author>'}}
"""

MakeFacts = Callable[..., RunFacts]


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without pictures, for tests that look at other files: drawing takes most of a report's time."""
    monkeypatch.setattr("fasttrain.report.page.draw_run", lambda run: [])


@pytest.fixture
def make_facts(tmp_path: Path) -> MakeFacts:
    """Facts of the small run in a folder of its own that holds plan.json and config.yaml already."""

    def make(name: str = "run", *, lr: float = 0.5, num_classes: int = 10, **changes: Any) -> RunFacts:
        run_dir = tmp_path / name
        run_dir.mkdir(exist_ok=True)
        config = make_config(**{**changes, "optimizer": {"lr": lr, **changes.get("optimizer", {})}})
        (run_dir / "plan.json").write_text(json.dumps(PLAN_JSON))
        (run_dir / "config.yaml").write_text(CONFIG_YAML.format(seed=config.seed, run_dir=run_dir, lr=lr))
        return RunFacts(
            run_dir=run_dir,
            config=config,
            plan=make_plan(),
            num_val=50,
            num_classes=num_classes,
            machine=replace(MACHINE),
            overrides=("optimizer.lr=0.5",),
        )

    return make
