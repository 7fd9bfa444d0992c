"""``-m``: the jobs of a sweep, one after the other, each in a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fasttrain.config.compose import ComposedRun
from fasttrain.config.sweep import compose_sweep
from fasttrain.errors import FasttrainError, MachineError, Problem, Stopped
from fasttrain.report.console import configure_logging
from fasttrain.run.exits import exit_code_of


def run_sweep(overrides: list[str], config_dir: Path | None, train: Callable[[ComposedRun], int]) -> int:
    """Compose all jobs, so that every error shows before the first one starts; then train them in order.

    A job that fails leaves the others to run; Ctrl-C ends the sweep.

    Args:
        overrides: The command line, with several values for some keys.
        config_dir: The user's own config folder.
        train: Trains one run.

    Returns:
        0, or the exit code of the first job that failed.
    """
    jobs = compose_sweep(overrides, config_dir=config_dir)
    folder = _sweep_folder()
    folders, failures = [], []
    for number, (job, run) in enumerate(jobs):
        configure_logging(None, 0)
        print(f"\njob {number + 1} of {len(jobs)}: {' '.join(job)}", flush=True)
        folders.append(folder / str(number))
        try:
            train(replace(run, config=replace(run.config, run_dir=str(folders[-1]))))
        except (Stopped, KeyboardInterrupt):
            raise
        except FasttrainError as error:
            failures.append(exit_code_of(error, debug=run.config.debug))
    print(f"\n{len(jobs) - len(failures)} of {len(jobs)} jobs finished in {folder}")
    print(f"compare them: fasttrain report {' '.join(str(path) for path in folders)}")
    return failures[0] if failures else 0


def _sweep_folder() -> Path:
    stem = Path.cwd() / "runs" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_sweep"
    for number in range(1, 1000):
        path = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        if not path.exists():
            return path
    raise MachineError(Problem(f"{stem.parent} holds 1,000 sweeps of this second", "wait a second"))
