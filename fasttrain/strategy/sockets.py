"""How many sockets and threads NCCL uses over TCP: probed before training, where TCP is what it uses.

NCCL reads these variables once in a process, so each pair of numbers is tried in processes of its own. By itself
NCCL takes one socket, but for two clouds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("fasttrain")

THREADS, SOCKETS = "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"

# Threads and sockets of a thread. Two GPUs over loopback: 102 MB in 34.2 ms by NCCL's own choice, 10.3 ms with 4 x 4
# (H200, NCCL 2.28.9). More sockets are not always faster (NVIDIA/nccl issue 450); NCCL allows 64 in all.
TRIED: tuple[tuple[int, int], ...] = ((2, 2), (4, 4), (8, 4))

# What a choice must save of NCCL's own time to be taken: sockets cost threads.
MIN_GAIN_FRAC = 0.10

# Seconds for one pair of numbers, imports and connecting included.
PROBE_TIMEOUT_S = 90

INFINIBAND = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class SocketChoice:
    """What NCCL is told.

    Attributes:
        numbers: Threads and sockets of a thread; None leaves them to NCCL.
        reason: In words.
    """

    numbers: tuple[int, int] | None
    reason: str

    def variables(self) -> dict[str, str]:
        """As NCCL reads them."""
        return variables(self.numbers)


def variables(numbers: tuple[int, int] | None) -> dict[str, str]:
    """NCCL's variables for threads and sockets of a thread."""
    return {} if numbers is None else {THREADS: str(numbers[0]), SOCKETS: str(numbers[1])}


def why_not_probed(environ: Mapping[str, str], infiniband: Path = INFINIBAND) -> str | None:
    """Why sockets are not probed; None where NCCL talks over TCP and nobody has chosen for it.

    Args:
        environ: Of a rank, as a launcher has left it.
        infiniband: The kernel's folder of such devices.
    """
    wanted = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in wanted if name not in environ]
    if missing:
        return f"{missing[0]} is not set"
    if THREADS in environ or SOCKETS in environ:
        return "they are set in the environment"
    size = int(environ["WORLD_SIZE"])
    if size == 1:
        return "one rank"
    nodes = size // int(environ.get("LOCAL_WORLD_SIZE", size))
    if nodes == 1 and not (_on(environ, "NCCL_P2P_DISABLE") and _on(environ, "NCCL_SHM_DISABLE")):
        return "the ranks share one machine's memory"
    net = environ.get("NCCL_NET", "")
    if net and net.lower() != "socket":
        return f"NCCL_NET={net}"
    if environ.get("NCCL_NET_PLUGIN", "none") != "none":
        return f"NCCL_NET_PLUGIN={environ['NCCL_NET_PLUGIN']}"
    if not net and not _on(environ, "NCCL_IB_DISABLE") and infiniband.is_dir() and any(infiniband.iterdir()):
        return "InfiniBand"
    return None


def best_choice(times_ms: Mapping[tuple[int, int] | None, float]) -> SocketChoice:
    """The fastest pair of numbers, where it is faster than NCCL's own choice by enough.

    Args:
        times_ms: Of the slowest rank by pair; None is NCCL's own; infinite where a pair failed.
    """
    own = times_ms[None]
    tried = {numbers: ms for numbers, ms in times_ms.items() if numbers is not None and math.isfinite(ms)}
    if not tried:
        return SocketChoice(None, "no other choice could be probed")
    best = min(tried, key=lambda numbers: tried[numbers])
    if tried[best] > own * (1 - MIN_GAIN_FRAC):
        return SocketChoice(None, f"NCCL's own choice took {own:.1f} ms, {best[0]} x {best[1]} {tried[best]:.1f} ms")
    return SocketChoice(
        best, f"{best[0]} threads of {best[1]} sockets took {tried[best]:.1f} ms, NCCL's own choice {own:.1f} ms"
    )


def choose_sockets(environ: MutableMapping[str, str]) -> SocketChoice:
    """Probe and set NCCL's variables; all ranks call it before the first communicator and choose the same.

    Args:
        environ: Of this process; changed.
    """
    reason = why_not_probed(environ)
    if reason is not None:
        return SocketChoice(None, reason)
    ranks = Meeting(environ)
    if ranks.rank == 0:
        log.info("probing NCCL's sockets and threads, about 10 s for each of %d pairs of numbers", 1 + len(TRIED))
    times = {numbers: probe(numbers, environ, ranks) for numbers in (None, *TRIED)}
    choice = best_choice(times)
    environ.update(choice.variables())
    if ranks.rank == 0:
        log.info("NCCL's sockets: %s", choice.reason)
    return choice


class Meeting:
    """Texts that ranks leave for one another before there is a process group: the launcher's store, or rank 0's."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self.rank, self.size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        launchers = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        # multi_tenant: the process group that is made later shares the port with this one.
        store: Any = TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            is_master=self.rank == 0 and not launchers,
            wait_for_workers=False,
            multi_tenant=True,
        )
        restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store: Any = PrefixStore(f"fasttrain/sockets/{restart}", store)

    def tell(self, key: str, text: str) -> None:
        self._store.set(key, text)

    def ask(self, key: str) -> str:
        """Wait for a text."""
        answer: bytes = self._store.get(key)
        return answer.decode()


def probe(numbers: tuple[int, int] | None, environ: Mapping[str, str], ranks: Meeting) -> float:
    """Milliseconds of the slowest rank with a pair of numbers; infinite where any rank failed."""
    name = "own" if numbers is None else f"{numbers[0]}x{numbers[1]}"
    if ranks.rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            ranks.tell(f"{name}/port", str(free.getsockname()[1]))
    port = ranks.ask(f"{name}/port")
    own = {**environ, **variables(numbers), "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    ranks.tell(f"{name}/{ranks.rank}", str(run_probe([sys.executable, "-m", "fasttrain.strategy.socket_probe"], own)))
    return max(float(ranks.ask(f"{name}/{rank}")) for rank in range(ranks.size))


def run_probe(command: Sequence[str], environ: Mapping[str, str]) -> float:
    """Milliseconds that the probe prints; infinite where it fails or does not end."""
    package_parent = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (package_parent, environ.get("PYTHONPATH", "")) if part)
    try:
        done = subprocess.run(
            command, env={**environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        log.warning("a probe of NCCL's sockets did not end within %d s", PROBE_TIMEOUT_S)
        return math.inf
    if done.returncode != 0:
        log.warning("a probe of NCCL's sockets failed: %s", (done.stderr.strip().splitlines() or ["no message"])[-1])
        return math.inf
    return float(json.loads(done.stdout.strip().splitlines()[-1])["ms"])


def _on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "0") not in ("", "0")
