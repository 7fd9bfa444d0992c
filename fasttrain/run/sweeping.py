"""``-m``: the jobs of a sweep, one after the other, each in a folder of its own."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fasttrain.config.compose import ComposedRun
from fasttrain.config.schema import RunConfig
from fasttrain.config.sweep import compose_sweep
from fasttrain.errors import (
    INTERRUPTED,
    TERMINATED,
    ConfigError,
    DeviceLost,
    FasttrainError,
    MachineError,
    Problem,
    Stopped,
)
from fasttrain.report.clock import JOB_STARTED
from fasttrain.report.console import configure_logging
from fasttrain.report.run_dir import make_unique
from fasttrain.run import planning
from fasttrain.run.exits import exit_code_of
from fasttrain.run.imports import spared_imports

# A job that ends with one of these was told to stop (Ctrl-C, SIGTERM), and so was the sweep.
STOPPED_CODES = (INTERRUPTED, TERMINATED)
MAX_NAMED = 10
# Outputs of the networks that are tried where neither settings nor images have been counted yet.
USUAL_CLASSES = 1000


def run_sweep(overrides: list[str], config_dir: Path | None, train: Callable[[ComposedRun], int]) -> int:
    """Compose and check all jobs, so that every error shows before the first one starts; then train them in order.

    A job that fails leaves the others to run; Ctrl-C ends the sweep.

    Args:
        overrides: The command line, with several values for some keys.
        config_dir: The user's own config folder.
        train: Trains one run.

    Returns:
        0, or the exit code of the first job that failed.

    Raises:
        ConfigError: With everything that is wrong in any job; none has started.
        Stopped: A signal ended a job; says how to go on with it, and with the jobs behind it.
    """
    jobs = compose_sweep(overrides, config_dir=config_dir)
    check_jobs([run for _, run in jobs])
    folder = _make_sweep_folder()
    commands = [_command(job, config_dir, folder / str(number)) for number, (job, _) in enumerate(jobs)]
    trained: list[Path] = []
    failures: list[int] = []
    for number, (job, run) in enumerate(jobs):
        configure_logging(None, 0)
        print(f"\njob {number + 1} of {len(jobs)}: {' '.join(job)}", flush=True)
        path = folder / str(number)
        try:
            with _own_clock(number):
                train(replace(run, config=replace(run.config, run_dir=str(path))))
        except KeyboardInterrupt as error:
            raise _stopped(error, number, commands) from error
        except Exception as error:
            if isinstance(error, FasttrainError) and error.exit_code in STOPPED_CODES:
                raise _stopped(error, number, commands) from error
            if isinstance(error, DeviceLost):
                # Nor would it answer the next job.
                raise DeviceLost(_stopped(error, number, commands).problems) from error
            failures.append(exit_code_of(error, debug=run.config.debug))
        else:
            if not run.config.dry_run:
                trained.append(path)
        # Trainer and network know each other: without this a job's captured graphs would keep the GPU's memory.
        gc.collect()
    _print_end(len(jobs), len(failures), trained, folder)
    return failures[0] if failures else 0


def check_jobs(runs: Sequence[ComposedRun]) -> None:
    """Ask the rooms about every job, and the libraries about every kind of network and optimizer among them.

    Jobs of one kind (other seeds, other learning rates) leave the libraries to the first one's own start, which
    loads them while its device comes up.

    Raises:
        ConfigError: With the problems of all jobs together, each once.
    """
    problems: list[Problem] = []
    for run in runs:
        try:
            planning.check_rooms(run.config, run.provenance)
        except ConfigError as error:
            problems += error.problems
    if not problems:
        kinds = {_of_the_libraries(run.config): run.config for run in runs if not run.config.dry_run}
        if len(kinds) > 1:
            with spared_imports():
                for config in kinds.values():
                    classes = config.model.num_classes or config.data.num_classes or USUAL_CLASSES
                    problems += planning.library_problems(config, classes)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _of_the_libraries(config: RunConfig) -> str:
    """What the libraries are asked about, as a text that is equal where it is."""
    optimizer = replace(config.optimizer, lr=1.0)
    return repr((config.model, optimizer, config.schedule.momentum, config.stages, config.trainer))


def print_sweep(overrides: list[str], config_dir: Path | None) -> None:
    """``-m --cfg job``: every job's settings, with the source of each."""
    from fasttrain.config.show import config_text

    jobs = compose_sweep(overrides, config_dir=config_dir)
    for number, (job, run) in enumerate(jobs):
        print(f"# job {number + 1} of {len(jobs)}: {' '.join(job)}\n{config_text(run)}")


@contextlib.contextmanager
def _own_clock(number: int) -> Iterator[None]:
    """Let a job's wall time begin with the job: the time of those before it is not its own."""
    if number:
        os.environ[JOB_STARTED] = repr(time.monotonic())
    try:
        yield
    finally:
        os.environ.pop(JOB_STARTED, None)


def _print_end(num_jobs: int, num_failed: int, trained: Sequence[Path], folder: Path) -> None:
    print(f"\n{num_jobs - num_failed} of {num_jobs} jobs finished in {folder}")
    if trained:
        what = "compare them" if len(trained) > 1 else "its report"
        print(f"{what}: fasttrain report {shlex.join(str(path) for path in trained)}")


def _command(job: Sequence[str], config_dir: Path | None, path: Path) -> str:
    """The command line that trains one job by itself, into the folder that it has in the sweep."""
    own = ["--config-dir", str(config_dir)] if config_dir else []
    return shlex.join(["python", "train.py", *own, *job, f"run_dir={path}"])


def _stopped(error: BaseException, number: int, commands: Sequence[str]) -> Stopped:
    what = error.problems[0].what if isinstance(error, FasttrainError) else "interrupted"
    code = error.exit_code if isinstance(error, FasttrainError) else INTERRUPTED
    lines = [f"go on with this job: {commands[number]} resume=auto"]
    behind = commands[number + 1 :]
    if behind:
        lines.append(f"then the {len(behind)} jobs that have not begun:" if len(behind) > 1 else "then the last job:")
        lines += [f"    {command}" for command in behind[:MAX_NAMED]]
        if len(behind) > MAX_NAMED:
            lines.append(f"    ... and {len(behind) - MAX_NAMED} more, each with its own values and run_dir")
    return Stopped(Problem(f"job {number + 1} of {len(commands)}: {what}", "\n    ".join(lines)), code)


def _make_sweep_folder() -> Path:
    """A new folder that no other sweep has, not even one of the same second."""
    stem = Path.cwd() / "runs" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_sweep"
    try:
        return make_unique(stem)
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(
            Problem(f"{stem} cannot be made: {reason}", "start the sweep in a folder that you can write to")
        ) from error
