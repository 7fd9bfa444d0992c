"""``fasttrain eval``: the accuracy of a checkpoint on its validation set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fasttrain.config.compose import load_run
from fasttrain.config.schema import RunConfig, StageConfig
from fasttrain.data.batch import COMPUTE_DTYPES
from fasttrain.data.layout import is_sorted_into_classes
from fasttrain.data.path import build_data_path
from fasttrain.data.prepare import as_flags
from fasttrain.data.preprocess import Normalize
from fasttrain.data.scan import Scan, scan
from fasttrain.errors import ConfigError, DataError, MachineError, Problem
from fasttrain.model.build import build_model
from fasttrain.regular_file import what_instead
from fasttrain.report.files import require_writable, write_json
from fasttrain.stages import EpochPlan, Plan, build_plan
from fasttrain.strategy.check import choose_accelerator
from fasttrain.strategy.world import World
from fasttrain.trainer.evaluate import evaluate
from fasttrain.trainer.results import MIN_CLASSES_FOR_TOP5
from fasttrain.trainer.resume import read_checkpoint, why_unreadable
from fasttrain.trainer.resume_check import check_classes, other_number
from fasttrain.trainer.views import NONE

VAL_PX = next(field.metadata for field in fields(StageConfig) if field.name == "val_px")
# Where a checkpoint has each kind of weights; the averaged ones, where it has them, are those that count.
WEIGHTS = {"averaged": "state_dict_ema", "raw": "state_dict"}
OTHER_ROOT = "--root PATH of a set with the same class folders"


def evaluate_checkpoint(
    checkpoint: Path, *, root: Path | None, px: int | None, json_file: Path | None, on_bad_file: str | None = None
) -> str:
    """Validate a checkpoint's network as its run did when it was written, with its averaged weights too.

    Args:
        checkpoint: A file of a run's ``checkpoints`` folder.
        root: Data set; None for the one it was trained on. Needs the same classes, not the same number of images.
        px: Short side of the validation images; None for that of the stage in which the checkpoint was written.
        json_file: Where the figures are written too.
        on_bad_file: ``fail``, or ``skip`` to leave out the images that cannot be decoded; None for what its run did.

    Returns:
        A line with top-1, top-5, px and the number of images that were counted for each kind of weights, those that
        count first; then what was left out.

    Raises:
        ConfigError: The file is no checkpoint of a run; ``px`` is out of bounds; no files to skip.
        DataError: The data set is missing or has other classes, or an image cannot be decoded.
        MachineError: ``json_file``, or what is known of bad files, cannot be written.
    """
    low, high = VAL_PX["ge"], VAL_PX["le"]
    if px is not None and not low <= px <= high:
        raise ConfigError(Problem(f"--px {px}: expected {low} to {high} pixels", "--px 128", "command line"))
    if json_file is not None:
        require_writable(json_file, "--json")
    content = _open(checkpoint)
    header = content["fasttrain"]
    config = _config(load_run(header["config"], source=str(checkpoint), older=True).config, root, on_bad_file)
    with _in_flags(checkpoint):
        images = scan(config, val_only=True)
    check_classes(header, checkpoint, images, fix=OTHER_ROOT)
    world = World(rank=0, local_rank=0, size=1, local_size=1, launcher="self")
    device = torch.device("cuda", 0) if choose_accelerator(config, world) == "gpu" else torch.device("cpu")
    plan = _plan(config, images)
    epoch = _epoch_of(header, plan)
    augmentation = config.trainer.test_time_augmentation
    shown_px = epoch.val_px if px is None else px
    with _in_flags(checkpoint):
        counts = _counts(content, config, images, plan, checkpoint, px=shown_px, epoch=epoch, device=device)
    has_top5 = images.num_classes >= MIN_CLASSES_FOR_TOP5
    accuracies = {
        kind: (100 * correct1 / count, 100 * correct5 / count if has_top5 else None, count)
        for kind, (correct1, correct5, count) in counts.items()
    }
    if json_file:
        figures = {"checkpoint": str(checkpoint), "px": shown_px, "test_time_augmentation": augmentation}
        figures |= {"skipped_files": len(images.skipped), "skipped": dict(images.skipped)}
        write_json(json_file, {**figures, **_figures(accuracies)})
    whose = f" (stage {epoch.stage}'s)" if px is None else ""
    views = "" if augmentation == NONE else f"; test-time augmentation {augmentation}"
    lines = [
        f"{checkpoint}: top1 {one:.2f}%{f' top5 {five:.2f}%' if five is not None else ''} at {shown_px} px{whose}; "
        f"N={count}; {kind} weights{views}"
        for kind, (one, five, count) in accuracies.items()
    ]
    return "\n".join([*lines, *_left_out(images, config)])


def _figures(accuracies: Mapping[str, tuple[float, float | None, int]]) -> dict[str, Any]:
    """Top-1 and top-5, percent, of the weights that count, and those of the others under their kind's name."""
    (counted, (top1, top5, num_val)), *others = accuracies.items()
    other1 = {f"{kind}_top1": one for kind, (one, _, _) in others}
    other5 = {f"{kind}_top5": five for kind, (_, five, _) in others}
    return {"weights": counted, "num_val": num_val, "top1": top1, "top5": top5, **other1, **other5}


def _left_out(images: Scan, config: RunConfig) -> list[str]:
    """Lines about the files that are not counted; none where bad files are an error."""
    if config.data.on_bad_file == "fail":
        return []
    num_files = images.num_val + len(images.skipped)
    if not images.skipped:
        return [f"all {num_files:,} validation images can be decoded"]
    named = [f"  {path}: {reason}" for path, reason in images.skipped]
    return [f"left out {len(named):,} of {num_files:,} validation images, which cannot be decoded:", *named]


@contextmanager
def _in_flags(checkpoint: Path) -> Iterator[None]:
    """Errors about data in words for this command, which takes flags and no settings."""
    try:
        yield
    except (DataError, MachineError) as error:
        said = type(error)(
            [
                replace(problem, what=_bad_file_flag(problem.what), fix=_bad_file_flag(problem.fix))
                for problem in error.problems
            ]
        )
        if isinstance(said, DataError):
            said = as_flags(said, f"fasttrain eval {checkpoint} --root PATH")
        raise said from error


def _bad_file_flag(text: str) -> str:
    text = re.sub(r"data\.on_bad_file=skip: .*", "--on-bad-file skip to leave such files out", text)
    return text.replace("data.on_bad_file=", "--on-bad-file ")


def _counts(
    content: Mapping[str, Any],
    config: RunConfig,
    images: Scan,
    plan: Plan,
    checkpoint: Path,
    *,
    px: int,
    epoch: EpochPlan,
    device: torch.device,
) -> dict[str, tuple[int, int, int]]:
    """Correct top-1 and top-5 answers and images, by the kind of weights; the kind that counts first."""
    normalize = Normalize(tuple(config.data.mean), tuple(config.data.std)).to(device)
    counts = {}
    for kind, key in WEIGHTS.items():
        if key not in content:
            continue
        network = build_model(config.model, images.num_classes)
        _load(network, content[key], images, checkpoint)
        network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        path = build_data_path(config, images, plan, device=device, rank=0, world_size=1)
        try:
            counts[kind] = evaluate(
                network,
                normalize,
                path,
                px=px,
                rectangular=epoch.rectangular_val,
                device=device,
                dtype=COMPUTE_DTYPES[config.trainer.precision],
                test_time_augmentation=config.trainer.test_time_augmentation,
            )
        finally:
            path.close()
    return counts


def _open(checkpoint: Path) -> dict[str, Any]:
    """The content of a checkpoint, with all that an evaluation reads in it."""
    other = "fasttrain eval RUN/checkpoints/best.ckpt"
    if checkpoint.is_dir():
        names = ("checkpoints/best.ckpt", "checkpoints/last.ckpt", "best.ckpt", "last.ckpt")
        inside = next((checkpoint / name for name in names if (checkpoint / name).is_file()), None)
        what = f"{checkpoint}: a folder, expected a checkpoint file"
        raise ConfigError(Problem(what, f"fasttrain eval {inside}" if inside else other))
    if wrong := what_instead(checkpoint):
        raise ConfigError(Problem(f"{checkpoint}: {wrong}", other))
    try:
        content = read_checkpoint(checkpoint)
    except ConfigError as error:
        unreadable = f"cannot be read: {why_unreadable(checkpoint)}"
        what = unreadable if error.__cause__ else "not a checkpoint of a fasttrain run"
        raise ConfigError(Problem(f"{checkpoint}: {what}", other)) from error
    if not isinstance(content.get("state_dict"), Mapping):
        raise ConfigError(Problem(f"{checkpoint}: it has no weights (state_dict)", other))
    return content


def _config(config: RunConfig, root: Path | None, on_bad_file: str | None) -> RunConfig:
    """The run's config for one device of this machine, whatever it was trained on, and for any number of images.

    Raises:
        ConfigError: Files are to be skipped where there are none.
    """
    # A single pass gains nothing from a cache.
    data = replace(config.data, cache="off", cache_dir=None)
    if root is not None:
        data = replace(data, root=str(root.expanduser().resolve()))
        if is_sorted_into_classes(os.path.join(str(data.root), "val")):
            data = replace(data, val_labels=None)
    if root is not None or data.backend != "synthetic":
        backend = "torchvision" if data.backend == "torchvision" else "auto"
        data = replace(data, backend=backend, num_train=None, num_val=None, num_classes=None)
    if on_bad_file is not None:
        without_files = data.kind if data.kind == "cifar10" else "synthetic" if data.backend == "synthetic" else None
        if on_bad_file == "skip" and without_files:
            what = f"--on-bad-file skip: {without_files} data decodes no image files"
            raise ConfigError(Problem(what, "leave it out", "command line"))
        data = replace(data, on_bad_file=on_bad_file)
    trainer = replace(config.trainer, devices=1, num_nodes=1)
    if not torch.cuda.is_available():
        precision = "fp32" if trainer.precision == "fp16" else trainer.precision
        trainer = replace(trainer, accelerator="cpu", precision=precision)
    return replace(
        config,
        data=data,
        model=replace(config.model, pretrained=False, init_from=None, num_classes=None),
        trainer=trainer,
        dry_run=False,
    )


def _plan(config: RunConfig, images: Scan) -> Plan:
    """The run's epochs; a set too small to train on can still be validated on."""
    return build_plan(
        config.stages,
        num_train=max(images.num_train, *(stage.batch_size for stage in config.stages)),
        world_size=1,
        device_batch_size=config.trainer.device_batch_size,
        steps_per_stage=config.trainer.steps_per_stage,
    )


def _epoch_of(header: Mapping[str, Any], plan: Plan) -> EpochPlan:
    """The epoch in which a checkpoint was written; the last one where it does not say."""
    begun = len(header.get("epochs") or plan.epochs)
    return plan.epochs[min(begun, len(plan.epochs)) - 1]


def _load(network: nn.Module, weights: Mapping[str, Any], images: Scan, checkpoint: Path) -> None:
    """Put the weights into the network; without class names in the checkpoint, its outputs say how many there were."""
    for key, tensor in network.state_dict().items():
        there = weights.get(key)
        if there is None or there.shape == tensor.shape or not tensor.ndim or not there.ndim:
            continue
        if tensor.shape[0] == images.num_classes and tensor.shape[1:] == there.shape[1:]:
            raise other_number(images, there.shape[0], checkpoint, fix=OTHER_ROOT)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            Problem(f"{checkpoint}: its weights do not fit the network that its config names: {reason}")
        ) from error
