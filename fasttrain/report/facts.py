"""What is known of a run beside its epochs, and how the reports word it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from fasttrain.config.schema import OptimizerConfig, RunConfig, ScheduleConfig
from fasttrain.report.machine import Machine
from fasttrain.stages import EpochPlan, Plan
from fasttrain.trainer.results import MIN_CLASSES_FOR_TOP5

# Sizes of ImageNet (ILSVRC 2012): classes, and validation images with the 1,762 disputed ones among them.
IMAGENET_CLASSES = 1000
IMAGENET_VAL = 50_000


@dataclass(frozen=True)
class RunFacts:
    """What stays the same from the start of a run to its report.

    Attributes:
        run_dir: The run's folder; holds config.yaml and plan.json before training starts.
        config: The run's settings.
        plan: Its epochs.
        num_val: Validation images.
        num_classes: Classes.
        machine: Hardware, versions, commit, command.
        overrides: Settings that differ from the recipe's, as ``key=value``.
        backend: The data back end in use, where data.backend=auto chose it; None for the one of the config.
        cache: State of the cache of decoded images.
        weights: Whose accuracy counts: ``raw`` or ``averaged``.
        notes: Further lines for the report, label to text (communication hook, tuned plan, captured step).
    """

    run_dir: Path
    config: RunConfig
    plan: Plan
    num_val: int
    num_classes: int
    machine: Machine
    overrides: Sequence[str] = ()
    backend: str | None = None
    cache: str = "off: every image is read and decoded in every epoch"
    weights: str = "raw"
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_imagenet(self) -> bool:
        """Whether the validation accuracy is one on ImageNet's classes."""
        return self.config.data.kind == "imagefolder" and self.num_classes == IMAGENET_CLASSES

    @property
    def is_cifar10(self) -> bool:
        return self.config.data.kind == "cifar10"

    @property
    def has_top5(self) -> bool:
        return self.num_classes >= MIN_CLASSES_FOR_TOP5


def settings(facts: RunFacts) -> dict[str, Any]:
    """What somebody needs to run it again (DAWNBench's ``misc``), in plain types."""
    config, plan, machine = facts.config, facts.plan, facts.machine
    return {
        "recipe": config.recipe,
        "command": machine.command,
        "overrides": overrides_text(facts),
        "commit": machine.commit,
        "seeds": [config.seed],
        "deterministic": config.deterministic,
        "train_images": plan.num_train,
        "val_images": facts.num_val,
        "classes": facts.num_classes,
        "stages": stages_text(plan),
        "batch_size": batch_text(plan),
        "ranks": plan.world_size,
        "machines": config.trainer.num_nodes,
        "learning_rate_schedule": schedule_text(config),
        "optimizer": optimizer_text(config.optimizer),
        "momentum": momentum_text(config),
        "weight_decay": weight_decay_text(config.optimizer),
        "label_smoothing": config.trainer.label_smoothing,
        **regularisation(config),
        "validated": validation_text(config),
        "test_time_augmentation": config.trainer.test_time_augmentation,
        "precision": config.trainer.precision,
        "compiled": config.trainer.compile,
        "data_backend": facts.backend or config.data.backend,
        "cache": facts.cache,
        "file_cache": "the operating system's was not cleared",
        **facts.notes,
        "versions": dict(machine.versions),
    }


def overrides_text(facts: RunFacts) -> list[str]:
    """The overrides, a stage table that was given as a whole written out so that it can be pasted."""
    rows = [
        "{" + ", ".join(f"{key}: {_yaml_word(value)}" for key, value in asdict(stage).items()) + "}"
        for stage in facts.config.stages
    ]
    table = f"stages=[{', '.join(rows)}]"
    return [table if override.startswith("stages=") else override for override in facts.overrides]


def stages_text(plan: Plan) -> list[str]:
    """One line a stage, e.g. ``stage 0: epochs 1-13, 96 px, batch 2048, validated at 128 px``."""
    return [
        f"stage {stage}: {_epochs(epochs)}, {epochs[0].px} px, smallest crop {epochs[0].min_area:g}, "
        f"batch {epochs[0].batch_size}, {epochs[0].steps} steps an epoch, validated at {epochs[0].val_px} px"
        + (" with each image's own aspect ratio" if epochs[0].rectangular_val else "")
        for stage, epochs in _groups(plan, lambda epoch: epoch.stage)
    ]


def batch_text(plan: Plan) -> str:
    """The global batch and what it is made of, for each that occurs."""
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    return "; ".join(
        f"{batch} ({_epochs(epochs)}) = {ranks} x {accumulate} accumulated x {plan.micro_batch(epochs[0])}"
        for (batch, accumulate), epochs in _groups(plan, lambda epoch: (epoch.batch_size, epoch.accumulate))
    )


def schedule_text(config: RunConfig) -> str:
    """The learning rate's course, e.g. ``linear: peak 2, warmup_epochs 5, end_lr 0``."""
    schedule = config.schedule
    words = [f"peak {config.optimizer.lr:g}", f"warmup_epochs {schedule.warmup_epochs:g}"]
    words.append(f"end_lr {schedule.end_lr:g}")
    words += _own(schedule, ScheduleConfig)
    if schedule.scale_with_batch:
        words.append("scaled with the batch")
    return f"{schedule.kind}: " + ", ".join(words)


def validation_text(config: RunConfig) -> str:
    """After which epochs the network is validated."""
    every = config.trainer.validate_every_epochs
    if every == 1:
        return "after every epoch"
    return "after the last epoch" if every is None else f"every {every} epochs and after the last"


def optimizer_text(optimizer: OptimizerConfig) -> str:
    """The optimizer and the settings that only it has."""
    words = _own(optimizer, OptimizerConfig)
    if optimizer.clip_norm is not None:
        words.append(f"gradients clipped to a norm of {optimizer.clip_norm:g}")
    return f"{optimizer.kind}: {', '.join(words)}" if words else optimizer.kind


def regularisation(config: RunConfig) -> dict[str, Any]:
    """What else is done to images, targets, statistics and weights; only what is on."""
    trainer, batchnorm = config.trainer, asdict(config.model.batchnorm)
    mixup = {key: value for key, value in asdict(trainer.mixup).items() if value}
    off = {"bias_lr_scale": 1, "sync": False, "recalibrate_images": 0}
    changed = {key: value for key, value in batchnorm.items() if value is not None and value != off.get(key)}
    averaging = {key: value for key, value in asdict(trainer.averaging).items() if value is not None}
    parts: dict[str, tuple[bool, Any]] = {
        "mixup": (bool(mixup), mixup),
        "jsd_alpha": (bool(trainer.jsd_alpha), trainer.jsd_alpha),
        "augment": (config.data.augment not in (None, "none"), config.data.augment),
        "weight_averaging": (trainer.averaging.kind not in (None, "none"), averaging),
        "batchnorm": (bool(changed), changed),
    }
    return {name: value for name, (on, value) in parts.items() if on}


def momentum_text(config: RunConfig) -> str:
    """The momentum, or the two ends of its cycle."""
    cycle = config.schedule.momentum
    if cycle is None:
        return f"{config.optimizer.momentum:g}"
    return f"{cycle.high:g} at the lowest learning rate, {cycle.low:g} at the peak"


def weight_decay_text(optimizer: OptimizerConfig) -> str:
    """The weight decay and what it leaves out."""
    left_out = "" if optimizer.decay_norm_and_bias or not optimizer.weight_decay else ", none on norm layers and biases"
    return f"{optimizer.weight_decay:g}{left_out}"


def _own(option: Any, shared: type) -> list[str]:
    """The settings of an option that its stage's other options lack, as words."""
    common = {known.name for known in fields(shared)}
    own = {known.name: getattr(option, known.name) for known in fields(option) if known.name not in common}
    return [
        (name if value else f"no {name}") if isinstance(value, bool) else f"{name} {value}"
        for name, value in own.items()
        if value is not None and value != {}
    ]


def _yaml_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _groups(plan: Plan, key: Any) -> list[tuple[Any, list[EpochPlan]]]:
    return [(value, list(epochs)) for value, epochs in groupby(plan.epochs, key=key)]


def _epochs(epochs: Sequence[EpochPlan]) -> str:
    first, last = epochs[0].epoch + 1, epochs[-1].epoch + 1
    return f"epoch {first}" if first == last else f"epochs {first}-{last}"
