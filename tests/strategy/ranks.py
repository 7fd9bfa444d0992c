"""Start real ranks over gloo: each runs functions of a worker file and writes what it found."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

TIMEOUT_S = 240


def environment(rank: int, size: int, port: int, *, node_size: int | None = None) -> dict[str, str]:
    """A rank's variables, as a launcher sets them."""
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % (node_size or size)),
        "LOCAL_WORLD_SIZE": str(node_size or size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_worker(
    worker: str,
    size: int,
    folder: Path,
    *checks: str,
    node_size: int | None = None,
    variables: Callable[[int], Mapping[str, str]] = lambda rank: {},
) -> list[dict[str, Any]]:
    """What each rank found: check to facts.

    Args:
        worker: A file beside this one.
        size: Ranks.
        folder: Where they write.
        checks: That they run.
        node_size: Ranks of a node, as a launcher would say.
        variables: More of them for a rank.

    Raises:
        AssertionError: A rank failed; with its last words.
    """
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / worker), str(folder / f"{rank}.json"), *checks],
            env={**environment(rank, size, port, node_size=node_size), **variables(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        words = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    failed = [text for rank, text in zip(ranks, words, strict=True) if rank.returncode != 0]
    assert not failed, failed[0][-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
