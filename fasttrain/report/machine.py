"""What a run ran on and by which command: hardware, versions, commit, command line."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fasttrain import __version__
from fasttrain.config.schema import RunConfig

# Name in the report: the distributions that may provide it.
PACKAGES: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "torchvision": ("torchvision",),
    "timm": ("timm",),
    "pytorch-lightning": ("pytorch-lightning",),
    "dali": ("nvidia-dali-cuda130", "nvidia-dali-cuda120"),
    "hydra": ("hydra-core",),
    "numpy": ("numpy",),
}

# What decides a result in a checkout; a changed note or record does not make it dirty.
CODE_PATHS = ("fasttrain", "conf", "recipes", "train.py")

# Where Linux says which driver is loaded.
DRIVER_MODULE = Path("/sys/module/nvidia/version")

# Seconds that git and nvidia-smi may take before the report does without them.
ASK_TIMEOUT_S = 10


@dataclass(frozen=True)
class Machine:
    """Where and by what a result was made.

    Attributes:
        hardware: As it reads in the report, e.g. ``1 x NVIDIA H200``.
        num_devices: Ranks, one device each.
        versions: Version by name of library.
        commit: Of the checkout, with ``-dirty`` after it unless git says that no code differs; None outside
            a checkout.
        command: The command line as typed.
    """

    hardware: str
    num_devices: int
    versions: Mapping[str, str]
    commit: str | None
    command: str


def describe_machine(config: RunConfig, *, device_type: str, world_size: int) -> Machine:
    """Look at the machine. Imports torch; takes about a tenth of a second beyond that.

    Args:
        config: ``report.hardware``, where set, is taken as it is.
        device_type: ``cuda`` or ``cpu``: what the run uses.
        world_size: Ranks.
    """
    return Machine(
        hardware=config.report.hardware
        or hardware(device_type, world_size=world_size, num_nodes=config.trainer.num_nodes),
        num_devices=world_size,
        versions=versions(device_type),
        commit=commit(Path(__file__).resolve().parents[2]),
        command=command_line(sys.orig_argv, os.environ),
    )


def hardware(device_type: str, *, world_size: int, num_nodes: int) -> str:
    """The devices of a run in words, e.g. ``16 x NVIDIA H200 (2 machines)``."""
    if device_type == "cuda":
        import torch

        text = f"{world_size} x {torch.cuda.get_device_name()}"
    else:
        text = _cpu()
        if world_size > 1:
            text = f"{world_size} processes on {text}"
    return f"{text} ({num_nodes} machines)" if num_nodes > 1 else text


def versions(device_type: str) -> dict[str, str]:
    """Versions of Python, of the libraries that shape a result and, on a GPU, of what lies below them."""
    import torch

    found = {"python": platform.python_version(), "fasttrain": __version__}
    for name, distributions in PACKAGES.items():
        version = _installed(distributions)
        if version is not None:
            found[name] = version
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    if device_type == "cuda":
        found["cudnn"] = str(torch.backends.cudnn.version())
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        driver = driver_version()
        if driver:
            found["driver"] = driver
    return found


def driver_version(module: Path = DRIVER_MODULE) -> str:
    """Version of the GPU's driver: the kernel's own word, else nvidia-smi's, which asks every GPU of the machine."""
    try:
        text: str | None = module.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        text = _ask(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return (text or "").partition("\n")[0].strip()


def commit(root: Path) -> str | None:
    """The commit of the checkout at ``root``; None where the code lies in no checkout of its own."""
    # A wheel inside somebody's repository must not be named by that repository's commit.
    if _ask(["git", "-C", str(root), "ls-files", "--error-unmatch", "fasttrain/__init__.py"]) is None:
        return None
    head = _ask(["git", "-C", str(root), "rev-parse", "HEAD"])
    if not head:
        return None
    changed = _ask(["git", "-C", str(root), "status", "--porcelain", "--", *CODE_PATHS])
    return head.strip() + ("" if changed == "" else "-dirty")


def command_line(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command as it was typed, with the launcher before it where torchrun started the process.

    Args:
        argv: ``sys.orig_argv``: the interpreter and everything after it.
        environment: ``os.environ``.
    """
    interpreter, *rest = argv
    script = Path(rest[0]) if rest else Path()
    if script.name == "fasttrain" and script.is_absolute():
        words = ["fasttrain", *rest[1:]]
    elif "TORCHELASTIC_RUN_ID" in environment:
        local, world = environment.get("LOCAL_WORLD_SIZE", "1"), environment.get("WORLD_SIZE", "1")
        nodes = str(max(1, int(world) // int(local)))
        words = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={local}"]
        # torchrun starts its children as PYTHON -u SCRIPT ...
        words += rest[1:] if rest[:1] == ["-u"] else rest
    else:
        words = [Path(interpreter).name, *rest]
    return shlex.join(words)


def _cpu() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return f"{cores}-core CPU ({model or platform.machine()})"


def _installed(distributions: Sequence[str]) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _ask(command: Sequence[str]) -> str | None:
    """What a program prints; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
