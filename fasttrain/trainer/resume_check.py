"""Whether a run may go on from a checkpoint: the same data, epochs and settings, or words for what differs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fasttrain.config.compose import load_run
from fasttrain.config.flat import OF_THE_PROCESS, config_diff
from fasttrain.config.yaml_text import flow
from fasttrain.data.digest import digest_of
from fasttrain.data.scan import Scan
from fasttrain.errors import ConfigError, DataError, Problem
from fasttrain.stages import Plan

log = logging.getLogger("fasttrain")

# Settings of model and data that change where or how fast, not what is trained.
HARMLESS = (
    "data.root",
    "data.workers",
    "data.backend",
    "data.hw_decoder_load",
    "data.cache_dir",
    "model.kernels.stem",
    "model.kernels.batchnorm",
    "model.kernels.max_pool",
    "model.kernels.norm_relu_pool",
)

# Settings with another value of which a checkpoint's weights find no place, whatever is forced.
OTHER_NETWORK = ("model.name", "model.ensemble")

# Classes that a message names; the rest it counts.
MAX_NAMED = 5


def check_resume(
    content: dict[str, Any],
    path: Path,
    config: dict[str, Any],
    plan: Plan,
    *,
    images: Scan,
    force: bool,
) -> None:
    """Refuse to continue where the result would not be the same run's.

    Prints what differs between the checkpoint's config and this one.

    Args:
        content: Of the checkpoint.
        path: Of the checkpoint.
        config: This run's settings as plain types.
        plan: This run's plan.
        images: This run's data.
        force: Accept other model and data settings.

    Raises:
        DataError: The data's classes or images are others, so that labels would be shifted; other files are left out.
        ConfigError: Model or data settings differ (unless ``force``), or the epochs behind the checkpoint's
            position are other ones in this plan, or the optimizer is another one.
    """
    header = content["fasttrain"]
    then = load_run(header["config"], older=True)
    check_classes(header, path, images, fix="give data.root the data set on which it was trained")
    _check_skipped(header, path, images)
    _check_images(header, path, images, force=force)
    differences = [(key, old, new) for key, old, new in config_diff(then.values, config) if key not in OF_THE_PROCESS]
    for key, old, new in differences:
        log.info("resume: %s was %s, is now %s", key, old, new)
    done = [list(row) for row in header["epochs"]]
    planned = [[e.px, e.batch_size, e.steps] for e in plan.epochs][: len(done)]
    if done != planned:
        raise ConfigError(
            Problem(
                f"{path} stands at step {header['step']}, after epochs of (px, batch, steps) {done}; "
                f"the stage table of this run has {planned} there",
                "give the stages (and data) with which the run was started",
            )
        )
    refused = [
        Problem(f"{key} was {old} when {path.name} was written, is now {new}", f"{key}={flow(old)}")
        for key, old, new in differences
        if key.split(".")[0] in ("model", "data") and key not in HARMLESS
    ]
    if force:
        refused = []
    elif refused and not any(key in OTHER_NETWORK for key, _, _ in differences):
        refused.append(Problem("a resume with other model or data settings is another run", "resume_force=true"))
    if problems := [*refused, *_check_optimizer(then.values["optimizer"], config["optimizer"], path)]:
        raise ConfigError(problems)


def unfit_weights(config_text: str, path: Path, config: dict[str, Any], error: Exception) -> Problem:
    """What to say of a checkpoint's weights that this run's network does not take, all else being accepted.

    Args:
        config_text: The checkpoint's settings.
        path: Of the checkpoint.
        config: This run's settings as plain types.
        error: Of the loading.
    """
    differing = [
        (key, old, new)
        for key, old, new in config_diff(load_run(config_text, older=True).values, config)
        if key.startswith("model.") and key not in HARMLESS
    ]
    if not differing:
        why = " ".join(str(error).split())[:400]
        return Problem(
            f"the weights of {path} do not fit model.name={config['model']['name']}: {why}",
            "use the version of timm and of this program with which the run was started",
        )
    changes = "; ".join(f"{key} was {old}, is now {new}" for key, old, new in differing)
    return Problem(
        f"the weights of {path} do not fit this run's network: {changes}",
        " ".join(f"{key}={flow(old)}" for key, old, _ in differing),
    )


def _check_optimizer(then: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> list[Problem]:
    """What one optimizer keeps of the steps behind it, another cannot use, ``resume_force=true`` or not."""
    if _update_rule(then) == _update_rule(now):
        return []
    return [
        Problem(
            f"{path} holds the averages of {_optimizer_words(then)}, this run has {_optimizer_words(now)}",
            f"{_optimizer_words(then)}, or a new run from its weights: model.init_from={path}",
        )
    ]


def _update_rule(optimizer: Mapping[str, Any]) -> tuple[str, str | None]:
    """Kind and name; torch's SGD and this program's own keep the same."""
    kind, name = optimizer["kind"], optimizer.get("name")
    return ("sgd", None) if (kind, name) == ("torch", "SGD") else (kind, name)


def _optimizer_words(optimizer: Mapping[str, Any]) -> str:
    name = optimizer.get("name")
    return f"optimizer={optimizer['kind']}" + (f" optimizer.name={name}" if name else "")


def _check_skipped(header: dict[str, Any], path: Path, images: Scan) -> None:
    """See that the same files are left out as before: with others, the rest of the epoch would be other images."""
    before = set(header.get("skipped_files") or ())
    now = {os.path.relpath(skipped, images.root) for skipped, _ in images.skipped}
    differing = sorted(before ^ now)
    if differing:
        more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
        raise DataError(
            Problem(
                f"{len(before)} files could not be decoded and were left out when {path} was written, now {len(now)}; "
                f"they differ in {', '.join(differing[:MAX_NAMED])}{more}",
                "bring these files back to what they were, or start a new run",
            )
        )


def _check_images(header: dict[str, Any], path: Path, images: Scan, *, force: bool) -> None:
    """See that the images are those of before: with others the order of an epoch names other ones.

    Raises:
        DataError: They are not (unless ``force``).
    """
    before, now = header.get("images"), digest_of(images)
    if None not in (before, now) and before != now and not force:
        raise DataError(
            Problem(
                f"{images.root} has other images than when {path} was written, though as many: files were added, "
                "removed or renamed, or are in other classes",
                "bring the data back to what it was, start a new run, or go on with these: resume_force=true",
            )
        )


def check_classes(header: dict[str, Any], path: Path, images: Scan, *, fix: str) -> None:
    """See that class ids mean the same in a checkpoint and in the data.

    Args:
        header: Of the checkpoint; an older one without class names passes.
        path: Of the checkpoint.
        images: The data; random pixels have no class names and pass.
        fix: What to do otherwise.

    Raises:
        DataError: They do not.
    """
    trained = list(header.get("classes") or ())
    if not trained or not images.classes:
        return
    if len(trained) != len(images.classes):
        raise other_number(images, len(trained), path, fix=fix)
    differing = [
        f"class {label} is {ours} there / {theirs} here"
        for label, (ours, theirs) in enumerate(zip(trained, images.classes, strict=True))
        if ours != theirs
    ]
    if differing:
        more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
        what = f"{images.root} has other classes than {path} was trained on, so labels would be shifted"
        raise DataError(Problem(f"{what}: {'; '.join(differing[:MAX_NAMED])}{more}", fix))


def other_number(images: Scan, trained: int, path: Path, *, fix: str) -> DataError:
    """The error of a checkpoint for another number of classes than the data has."""
    return DataError(Problem(f"{images.root} has {images.num_classes} classes, {path} was trained on {trained}", fix))
