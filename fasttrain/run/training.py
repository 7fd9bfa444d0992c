"""The parts of a run that need torch: built, trained, reported."""

from __future__ import annotations

import importlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pytorch_lightning import Callback
from pytorch_lightning.strategies import Strategy
from torch import nn

from fasttrain.config.compose import ComposedRun
from fasttrain.config.schema import ModelConfig, RunConfig
from fasttrain.data.digest import digest_of
from fasttrain.data.path import DataPath, build_data_path
from fasttrain.data.policy import num_views
from fasttrain.data.preprocess import Normalize, preprocessing_description
from fasttrain.data.scan import Scan
from fasttrain.errors import FasttrainError, Stopped
from fasttrain.model.batchnorm import synchronised
from fasttrain.model.build import build_model
from fasttrain.report.callback import ReportCallback
from fasttrain.report.clock import Clock
from fasttrain.report.console import configure_logging, log
from fasttrain.report.facts import RunFacts
from fasttrain.report.machine import describe_machine
from fasttrain.run.found_checkpoint import FoundCheckpoint, best_accuracy
from fasttrain.run.lost_device import closing_hides_nothing, device_lost, failure_of_device
from fasttrain.run.planning import given
from fasttrain.schedule.schedule import Schedule
from fasttrain.stages import Plan
from fasttrain.strategy.check import choose_accelerator
from fasttrain.strategy.launch import handed_over
from fasttrain.strategy.lightning import build_strategy
from fasttrain.strategy.world import World
from fasttrain.trainer import fit as trainer_fit
from fasttrain.trainer.checkpoints import Checkpoints
from fasttrain.trainer.compiled import compile_objective
from fasttrain.trainer.first_images import InitializedFromImages, InitializeFromImages
from fasttrain.trainer.mixing import Mixing
from fasttrain.trainer.module import ClassifierModule
from fasttrain.trainer.objective import Objective
from fasttrain.trainer.resume import Resume
from fasttrain.trainer.signals import StopSignals
from fasttrain.trainer.warmup import WarmUp


@dataclass(frozen=True)
class Parts:
    """A run, put together."""

    config: RunConfig
    world: World
    accelerator: str
    module: ClassifierModule
    data: DataPath
    strategy: Strategy
    callbacks: list[Callback]
    report: ReportCallback
    signals: StopSignals


def import_compiler(config: RunConfig) -> None:
    """Load what torch.compile would load at its first use, where the run compiles."""
    if config.trainer.compile:
        importlib.import_module("torch._inductor.compile_fx")


def build(
    run: ComposedRun,
    images: Scan,
    plan: Plan,
    schedule: Schedule,
    world: World,
    run_dir: Path,
    checkpoint: FoundCheckpoint | None,
    clock: Clock,
) -> Parts:
    """Build data path, network, strategy, report and callbacks; ``clock`` has run since the process began.

    Raises:
        MachineError: The machine lacks the devices.
        ConfigError: The network cannot be built.
    """
    config = run.config
    background = ThreadPoolExecutor(1, "digest")
    digest = background.submit(digest_of, images)
    background.shutdown(wait=False)
    # Again: Lightning gave its loggers handlers of their own when it was imported.
    configure_logging(run_dir if world.rank == 0 else None, world.rank)
    accelerator = choose_accelerator(config, world)
    device = torch.device("cuda", world.local_rank) if accelerator == "gpu" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(config.seed)
    network = build_model(_model_to_build(config, checkpoint), images.num_classes)
    if config.model.batchnorm.sync:
        network, note = synchronised(network, world_size=world.size, device_type=device.type)
        if note and world.rank == 0:
            log.info(note)
    data = build_data_path(config, images, plan, device=device, rank=world.rank, world_size=world.size)
    module = ClassifierModule(
        config,
        _objective(config, network, plan),
        plan,
        schedule,
        data,
        num_val=images.num_val,
        num_classes=images.num_classes,
    )
    report = _report(run, images, plan, world, run_dir, device, data.backend.name, clock)
    signals = StopSignals(speaks=world.rank == 0)
    header = {
        "config": run.text,
        "preprocessing": preprocessing_description(config),
        "recipe": config.recipe,
        "classes": list(images.classes),
        "images": digest.result(),
        "skipped_files": [os.path.relpath(path, images.root) for path, _ in images.skipped],
    }
    callbacks: list[Callback] = [
        *([Resume(checkpoint.content, checkpoint.path)] if checkpoint else []),
        trainer_fit.SignalsOn(signals),
        WarmUp(),
        report,
        *([InitializeFromImages()] if _looks_at_images(network, config, checkpoint) else []),
        *([trainer_fit.StopAtTarget(config.target)] if config.target.stop else []),
        Checkpoints(
            run_dir / "checkpoints",
            header,
            config.target,
            signals,
            lambda: report.clock.paused("checkpoint"),
            best_accuracy=best_accuracy(checkpoint, config.target.metric) if checkpoint else None,
        ),
    ]
    if checkpoint:
        log.info("continuing from %s at step %d", checkpoint.path, checkpoint.content["fasttrain"]["step"])
    return Parts(
        config=config,
        world=world,
        accelerator=accelerator,
        module=module,
        data=data,
        strategy=build_strategy(config, world, accelerator),
        callbacks=callbacks,
        report=report,
        signals=signals,
    )


def _model_to_build(config: RunConfig, checkpoint: FoundCheckpoint | None) -> ModelConfig:
    """The network's settings; a checkpoint has all weights, and nothing else is read or fetched for them."""
    return replace(config.model, pretrained=False, init_from=None) if checkpoint else config.model


def _looks_at_images(network: nn.Module, config: RunConfig, checkpoint: FoundCheckpoint | None) -> bool:
    """Whether the network's first weights come from images, and not from a checkpoint."""
    has_weights = checkpoint is not None or config.model.init_from is not None
    return isinstance(network, InitializedFromImages) and not has_weights


def _objective(config: RunConfig, network: nn.Module, plan: Plan) -> Objective:
    if config.trainer.channels_last:
        network.to(memory_format=torch.channels_last)
    normalize = Normalize(tuple(config.data.mean), tuple(config.data.std))
    trainer = config.trainer
    objective = Objective(
        network,
        normalize,
        label_smoothing=trainer.label_smoothing,
        mixing=Mixing(trainer.mixup) if max(trainer.mixup.alpha, trainer.mixup.cutmix_alpha) > 0 else None,
        num_views=num_views(config),
        jsd_alpha=trainer.jsd_alpha,
    )
    if config.trainer.compile:
        return compile_objective(objective, config, num_shapes=len(plan.shapes()))
    return objective


def _report(
    run: ComposedRun,
    images: Scan,
    plan: Plan,
    world: World,
    run_dir: Path,
    device: torch.device,
    backend: str | None,
    clock: Clock,
) -> ReportCallback:
    machine = describe_machine(run.config, device_type=device.type, world_size=world.size)
    left = handed_over()
    if left is not None:
        machine = replace(machine, command=left.command)
    facts = RunFacts(
        run_dir=run_dir,
        config=run.config,
        plan=plan,
        num_val=images.num_val,
        num_classes=images.num_classes,
        machine=machine,
        backend=backend,
        weights="raw" if run.config.trainer.averaging.kind == "none" else "averaged",
        overrides=[f"{key}={value}" for key, value, _ in (left.overrides if left else given(run))],
    )
    clock.synchronize = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None
    report = ReportCallback(facts, clock)
    report.skipped_files = [path for path, _ in images.skipped]
    return report


def fit(parts: Parts) -> None:
    """Train to the end of the plan, or to the signal that stops it."""
    on_terminal = parts.world.rank == 0 and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    parts.signals.install()
    parts.report.clock.mark("setup: trainer")
    try:
        trainer_fit.fit(
            parts.module,
            config=parts.config,
            world=parts.world,
            accelerator=parts.accelerator,
            strategy=parts.strategy,
            callbacks=parts.callbacks,
            progress_bar=on_terminal,
        )
    except Exception as error:
        # A compiler that the same signal has ended, for one: what was told to stop has not failed.
        if parts.signals.requested is not None and not isinstance(error, FasttrainError):
            raise Stopped("by a signal before the next step", parts.signals.exit_code()) from error
        if (cause := failure_of_device(error)) is not None:
            raise device_lost(cause, parts.report.facts.run_dir) from error
        raise
    finally:
        parts.signals.restore()
        with closing_hides_nothing():
            parts.data.close()


def report_finished(
    run: ComposedRun,
    images: Scan,
    plan: Plan,
    world: World,
    run_dir: Path,
    checkpoint: FoundCheckpoint,
    clock: Clock,
) -> None:
    """Say that nothing is left to do; write the report where the process ended before it could."""
    log.info("nothing to do: the run in %s is finished", run_dir)
    if world.rank == 0 and not (run_dir / "report" / "result.json").is_file():
        report = _report(run, images, plan, world, run_dir, torch.device("cpu"), None, clock)
        report.load_state_dict(checkpoint.content["callbacks"][report.state_key])
        report.reopen()
        log.info(report.line(report.finish()))


def finish(parts: Parts) -> int:
    """Write the report and print its one line; returns the exit code 0, for a missed target too."""
    parts.report.note(parts.module.step_notes())
    result = parts.report.finish()
    log.info("report: %s", parts.report.facts.run_dir / "report" / "report.html")
    log.info(parts.report.line(result))
    return 0
