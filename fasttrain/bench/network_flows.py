"""Raw TCP connections side by side: ``network_flows.py receive|send ADDRESS PORT`` tells what a network carries.

A script of the standard library alone, so that it starts at once inside a namespace.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Sequence

# Of linux/socket.h; Python does not name it. Bytes a second.
SO_MAX_PACING_RATE = 47

CHUNK = 1 << 16

# Seconds at the start that do not count: the shaper's bucket is full, and TCP finds its window.
RAMP_S = 0.5


def receive(address: str, port: int, flows: int, seconds: float) -> None:
    """Accept connections and print what came in, Mbit/s."""
    counts = [0] * flows
    with socket.create_server((address, port), backlog=flows) as server:
        connections = [server.accept()[0] for _ in range(flows)]

    def drain(index: int) -> None:
        buffer = bytearray(CHUNK)
        while got := connections[index].recv_into(buffer):
            counts[index] += got

    threads = [threading.Thread(target=drain, args=(index,), daemon=True) for index in range(flows)]
    for thread in threads:
        thread.start()
    time.sleep(RAMP_S)
    before, started = sum(counts), time.perf_counter()
    time.sleep(seconds)
    mbps = (sum(counts) - before) * 8 / 1e6 / (time.perf_counter() - started)
    print(json.dumps({"mbps": mbps}), flush=True)


def send(address: str, port: int, flows: int, seconds: float, pace_mbps: float | None) -> None:
    """Connect and send for as long as the receiver measures."""
    end = time.perf_counter() + RAMP_S + seconds + 0.5

    def push() -> None:
        connection = _connect(address, port)
        if pace_mbps is not None:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(pace_mbps * 1e6 / 8))
        data = bytes(CHUNK)
        # The receiver leaves when it has measured.
        while time.perf_counter() < end:
            try:
                connection.sendall(data)
            except OSError:
                return

    threads = [threading.Thread(target=push, daemon=True) for _ in range(flows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=seconds + 10)


def _connect(address: str, port: int) -> socket.socket:
    """The receiver may not listen yet."""
    deadline = time.perf_counter() + 10
    while True:
        try:
            return socket.create_connection((address, port), timeout=10)
        except OSError:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.05)


def flows_mbps(text: str) -> float:
    """What ``receive`` has printed, Mbit/s."""
    return float(json.loads(text)["mbps"])


def main(arguments: Sequence[str]) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("receive", "send"))
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--flows", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pace-mbps", type=float)
    flags = parser.parse_args(arguments)
    if flags.role == "receive":
        receive(flags.address, flags.port, flags.flows, flags.seconds)
    else:
        send(flags.address, flags.port, flags.flows, flags.seconds, flags.pace_mbps)


if __name__ == "__main__":
    main(sys.argv[1:])
