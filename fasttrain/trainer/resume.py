"""Continue a run from a checkpoint as if it had never stopped."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from fasttrain.errors import ConfigError, FasttrainError, Problem
from fasttrain.stages import Plan
from fasttrain.strategy.accelerated import AcceleratedDDPStrategy
from fasttrain.trainer.module import ClassifierModule
from fasttrain.trainer.resume_check import unfit_weights

log = logging.getLogger("fasttrain")


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
            config = asdict(pl_module.config)
            raise ConfigError(unfit_weights(content["fasttrain"]["config"], self.path, config, error)) from error
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
