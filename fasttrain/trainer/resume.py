"""Continue a run from a checkpoint as if it had never stopped."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from fasttrain.config.compose import load_run
from fasttrain.config.flat import OF_THE_PROCESS, config_diff
from fasttrain.config.yaml_text import flow
from fasttrain.data.digest import digest_of
from fasttrain.data.scan import Scan
from fasttrain.errors import ConfigError, DataError, FasttrainError, Problem
from fasttrain.stages import Plan
from fasttrain.strategy.accelerated import AcceleratedDDPStrategy
from fasttrain.trainer.module import ClassifierModule

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

# Classes that a message names; the rest it counts.
MAX_NAMED = 5


def newest_checkpoint(run_dir: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint of a run: last.ckpt, or the one before it where last.ckpt is broken.

    Returns:
        Its path and content, or None where the run has none yet.

    Raises:
        ConfigError: There are checkpoints, but none can be read.
    """
    broken = []
    for name in ("last.ckpt", "previous.ckpt"):
        path = run_dir / "checkpoints" / name
        if not path.exists():
            continue
        try:
            content = read_checkpoint(path)
        except ConfigError as error:
            broken.append(error.problems[0])
            log.warning("%s; trying the one before it", error.problems[0].what)
            continue
        return path, content
    if broken:
        raise ConfigError(broken)
    return None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Open a checkpoint of this program.

    Raises:
        ConfigError: The file is missing, broken, or not such a checkpoint.
    """
    if not path.is_file():
        raise ConfigError(Problem(f"resume={path}: there is no such file", "resume=auto run_dir=RUN_DIR"))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(
            Problem(f"the checkpoint {path} cannot be read: {why_unreadable(path)}", "use another checkpoint")
        ) from error
    header = content.get("fasttrain") if isinstance(content, dict) else None
    if (
        not isinstance(header, dict)
        or not {"config", "step", "epochs"} <= header.keys()
        or not isinstance(header["config"], str)
    ):
        raise ConfigError(
            Problem(
                f"{path} is not a checkpoint of a fasttrain run, so there is no position to continue from",
                f"model.init_from={path} starts a new run from its weights",
            )
        )
    return content


def why_unreadable(path: Path) -> str:
    """What is wrong with a file that torch cannot load."""
    return "it is empty" if path.stat().st_size == 0 else "it is cut short, or no file that torch.save wrote"


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
            position are other ones in this plan.
    """
    header = content["fasttrain"]
    check_classes(header, path, images, fix="give data.root the data set on which it was trained")
    _check_skipped(header, path, images)
    _check_images(header, path, images, force=force)
    differences = [
        (key, old, new)
        for key, old, new in config_diff(load_run(header["config"], older=True).values, config)
        if key not in OF_THE_PROCESS
    ]
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
    if refused and not force:
        raise ConfigError(
            [
                *refused,
                Problem("a resume with other model or data settings is another run", "resume_force=true"),
            ]
        )


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


class Resume(Callback):
    """Puts a checkpoint's state in place once Lightning has set everything up.

    Lightning's own restart of its loops is not used: with the plan, epoch and step say all that they need.
    """

    def __init__(self, content: dict[str, Any], path: Path) -> None:
        self.content = content
        self.path = path

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ClassifierModule)
        content, step = self.content, int(self.content["fasttrain"]["step"])
        try:
            pl_module.network.load_state_dict(content["state_dict"])
        except RuntimeError as error:
            raise ConfigError(
                Problem(
                    f"the weights of {self.path} do not fit model.name={pl_module.config.model.name}: "
                    + " ".join(str(error).split())[:400],
                    "give the model with which the run was started",
                )
            ) from error
        load_average(pl_module, content, step, self.path)
        load_optimizer(trainer.optimizers[0], content["optimizer_states"][0], self.path)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        saved = content.get(type(trainer.precision_plugin).__qualname__)
        if scaler is not None and saved:
            trainer.precision_plugin.load_state_dict(saved)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if callback.state_key in content["callbacks"]:
                callback.load_state_dict(content["callbacks"][callback.state_key])
        if isinstance(trainer.strategy, AcceleratedDDPStrategy):
            trainer.strategy.use_plan_of(content)
        pl_module.resume_at(step, content["fasttrain_epoch_state"])
        set_position(trainer, pl_module.plan, step)
        self.content = {}


def load_average(module: ClassifierModule, content: dict[str, Any], step: int, path: Path) -> None:
    """Load the averaged weights, where this run has them and they have begun.

    Raises:
        ConfigError: They should have begun, and the checkpoint has none.
    """
    if module.average is None or not module.average.begun(step):
        return
    saved = content.get("state_dict_ema")
    if saved is None:
        kind = module.config.trainer.averaging.kind
        epochs_done = module.plan.epochs_done(step - 1)
        raise ConfigError(
            Problem(
                f"trainer.averaging.kind={kind}: {path} has no averaged weights, and the average begins before its "
                f"step {step}",
                f"trainer.averaging.kind=none, or trainer.averaging.from_epoch={epochs_done:g} or later",
            )
        )
    module.average.network.load_state_dict(saved)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], path: Path) -> None:
    """Load an optimizer's state; the groups must hold as many parameters as then.

    Raises:
        ConfigError: They do not.
    """
    then = [len(group["params"]) for group in state["param_groups"]]
    now = [len(group["params"]) for group in optimizer.param_groups]
    if then != now:
        raise ConfigError(
            Problem(
                f"the optimizer in {path} has parameter groups of {then} tensors, this run's has {now}",
                "give the model, optimizer and optimizer.decay_norm_and_bias with which the run was started",
            )
        )
    try:
        optimizer.load_state_dict(state)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            Problem(
                f"the optimizer's state in {path} does not fit this optimizer: {error}",
                "optimizer=NAME as then",
            )
        ) from error


def set_position(trainer: Trainer, plan: Plan, step: int) -> None:
    """Let Lightning's counters say that ``step`` updates are done.

    Raises:
        FasttrainError: Lightning counts otherwise than this program expects.
    """
    epoch = len(plan.epochs) if step >= plan.total_steps else plan.epoch_at(step).epoch
    progress = trainer.fit_loop.epoch_progress
    for counts in (progress.current, progress.total):
        for name in ("ready", "started", "processed", "completed"):
            setattr(counts, name, epoch)
    steps = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    steps.total.ready = steps.total.completed = step
    trainer.fit_loop.epoch_loop._batches_that_stepped = step
    if trainer.global_step != step or trainer.current_epoch != epoch:
        raise FasttrainError(
            f"Lightning stands at step {trainer.global_step}, epoch {trainer.current_epoch} after a resume at "
            f"step {step}, epoch {epoch}"
        )
