"""The folder of a run: unique, never shared, never overwritten."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from fasttrain.config.schema import RunConfig
from fasttrain.errors import ConfigError, MachineError, Problem


def slurm_job(environ: Mapping[str, str] = os.environ) -> str | None:
    """The name of the SLURM job that this process belongs to; the same after a requeue."""
    array = environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}"
    return environ.get("SLURM_JOB_ID")


def choose_run_dir(config: RunConfig, environ: Mapping[str, str] = os.environ) -> tuple[Path, str | None]:
    """The run's folder (not yet made, unless unique by time) and the resume that goes with it.

    ``run_dir`` where given; under SLURM one named by the job, continued by ``resume=auto`` when the job is
    requeued; else ``runs/DATE_TIME_RECIPE``, made here so that two runs started in one second get two.

    Returns:
        The folder, and ``config.resume`` or what SLURM's requeue makes of it.

    Raises:
        ConfigError: ``resume=auto`` without a ``run_dir`` to look in.
        MachineError: The folder cannot be made.
    """
    if config.run_dir is not None:
        return Path(config.run_dir), config.resume
    if config.resume == "auto" and slurm_job(environ) is None:
        raise ConfigError(
            Problem(
                "resume=auto looks for the newest checkpoint of run_dir, which is not given",
                "run_dir=runs/NAME",
            )
        )
    job = slurm_job(environ)
    if job is not None:
        return Path.cwd() / "runs" / f"slurm-{job}_{config.recipe}", config.resume or "auto"
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{config.recipe}"
    for number in range(1, 1000):
        path = Path.cwd() / "runs" / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(path, error) from error
        return path, config.resume
    raise MachineError(Problem(f"{path.parent} holds 1,000 runs of this second", "run_dir=PATH"))


def holds_run(path: Path) -> bool:
    """Whether a run has left results in this folder, which must not be written over."""
    return any((path / name).exists() for name in ("metrics.csv", "checkpoints/last.ckpt"))


def open_run_dir(path: Path, *, resuming: bool) -> None:
    """Make the folder and its sub-folders, and see that it can be written.

    Raises:
        ConfigError: It holds a run already, and this one does not continue it.
        MachineError: It cannot be made or written.
    """
    if not resuming and holds_run(path):
        raise ConfigError(
            Problem(
                f"run_dir={path} already holds a run; nothing of it was touched",
                "resume=auto continues it; another run_dir=PATH starts a new one",
            )
        )
    try:
        for folder in (path, path / "checkpoints", path / "report"):
            folder.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> MachineError:
    reason = error.strerror or str(error)
    return MachineError(Problem(f"run_dir={path} cannot be written: {reason}", "run_dir=PATH in a folder of yours"))
