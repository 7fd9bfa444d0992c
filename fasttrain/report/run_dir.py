"""The folder of a run: unique, never shared, never overwritten."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from fasttrain.config.flat import OF_THE_PROCESS, config_diff
from fasttrain.config.schema import RunConfig
from fasttrain.errors import ConfigError, MachineError, Problem

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

# The folders that this process holds, and their open lock files.
_locks: dict[Path, int] = {}


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
        ConfigError: ``resume=auto`` without a ``run_dir`` to look in; a SLURM job's folder whose settings cannot
            be read.
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
        return _slurm_folder(config, job), config.resume or "auto"
    stem = Path.cwd() / "runs" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{config.recipe}"
    try:
        return make_unique(stem), config.resume
    except OSError as error:
        raise _unwritable(Path(error.filename or stem), error) from error


def make_unique(stem: Path) -> Path:
    """Make a folder that nobody else has: ``stem``, or the first free one of ``stem-2``, ``stem-3``, ...

    Raises:
        OSError: It cannot be made.
        MachineError: All of 1,000 names are taken.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise MachineError(Problem(f"{stem.parent} holds 1,000 folders called {stem.name}", "wait a second"))


def holds_run(path: Path) -> bool:
    """Whether a run has left results in this folder, which must not be written over."""
    return any((path / name).exists() for name in ("metrics.csv", "checkpoints/last.ckpt"))


def has_checkpoint(config: RunConfig, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a file for the run to go on from; makes no folder, and does not look into the file."""
    resume = config.resume
    if resume is not None and resume != "auto":
        return Path(resume).is_file()
    if config.run_dir is None and slurm_job(environ) is None:
        return False
    run_dir, resume = choose_run_dir(config, environ)
    return resume == "auto" and any(
        (run_dir / "checkpoints" / name).exists() for name in ("last.ckpt", "previous.ckpt")
    )


def _slurm_folder(config: RunConfig, job: str) -> Path:
    """The job's folder for these settings: a requeue finds it again, another run of the same job gets its own."""
    for number in range(1, 1000):
        path = Path.cwd() / "runs" / (f"slurm-{job}_{config.recipe}" + (f"-{number}" if number > 1 else ""))
        written = path / "config.yaml"
        if not written.is_file():
            return path
        then = _written_settings(written)
        if all(key in OF_THE_PROCESS for key, _, _ in config_diff(then, asdict(config))):
            return path
    raise MachineError(Problem(f"{path.parent} holds 1,000 runs of SLURM job {job}", "run_dir=PATH"))


def _written_settings(path: Path) -> dict[str, Any]:
    """The settings in a job's ``config.yaml``.

    Raises:
        ConfigError: It cannot be read, so whether its run is this one is not known.
    """
    fix = f"run_dir=PATH, or remove {path}, whose run then starts anew in its folder"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(Problem(f"{path}: cannot be read as YAML: {str(error).splitlines()[0]}", fix)) from error
    if not isinstance(values, dict) or not isinstance(values.get("stages"), list):
        raise ConfigError(Problem(f"{path}: expected a run's settings, stages among them", fix))
    if not all(isinstance(row, dict) for row in values["stages"]):
        raise ConfigError(Problem(f"{path}: stages: expected a table of settings in each row", fix))
    return values


def lock_run_dir(path: Path) -> None:
    """Keep other processes out of a run's folder until this one ends; a second call changes nothing.

    Raises:
        ConfigError: Another process trains into it.
    """
    if fcntl is None or path in _locks:
        return
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            Problem(f"run_dir={path} is in use by another process", "wait for it to end, or another run_dir=PATH")
        ) from None
    except OSError:
        # File systems without locks: nothing can be known.
        os.close(lock)
        return
    _locks[path] = lock


def continues(path: Path, resume: str | None) -> bool:
    """Whether a run with this ``resume`` goes on in its own folder; a checkpoint of elsewhere starts another one."""
    return resume == "auto" or (resume is not None and Path(resume).resolve().is_relative_to(path.resolve()))


def open_run_dir(path: Path, *, resuming: bool) -> None:
    """Make the folder and its sub-folders, and see that it can be written.

    Raises:
        ConfigError: It holds a run already, and this one does not continue it; or another process writes there.
        MachineError: It cannot be made or written.
    """
    try:
        if not resuming and holds_run(path):
            raise ConfigError(
                Problem(
                    f"run_dir={path} already holds a run; nothing of it was touched",
                    "resume=auto continues it; another run_dir=PATH starts a new one",
                )
            )
        for folder in (path, path / "checkpoints", path / "report"):
            folder.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error
    lock_run_dir(path)


def _unwritable(path: Path, error: OSError) -> MachineError:
    reason = error.strerror or str(error)
    return MachineError(Problem(f"run_dir={path} cannot be written: {reason}", "run_dir=PATH in a folder of yours"))
