"""The hub that timm fetches published weights from: whether it can be reached, without its minutes of retries."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import timm

# Long enough for a slow line, short enough to wait for.
TIMEOUT_S = 3.0
# Names under which timm looks for a network's weights on the hub.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
LOGGERS = ("huggingface_hub", "timm.models._hub", "timm.models._builder")


def unreachable(name: str) -> str:
    """Why the hub cannot give the weights of timm's network ``name``; empty where it may.

    Weights in the hub's cache need no connection, and behind a proxy a connection of our own says nothing.
    """
    found = timm.models.get_pretrained_cfg(name)
    if found is None or not found.hf_hub_id:
        return ""
    import huggingface_hub
    from huggingface_hub import constants

    files = [found.hf_hub_filename] if found.hf_hub_filename else WEIGHT_FILES
    repository, _, revision = found.hf_hub_id.partition("@")
    for file in files:
        if isinstance(huggingface_hub.try_to_load_from_cache(repository, file, revision=revision or None), str):
            return ""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and they are not in the hub's cache"
    address = urlsplit(constants.ENDPOINT)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    if address.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return ""
    return _no_connection(host, port)


def _no_connection(host: str, port: int) -> str:
    """Why no connection can be made within the time; empty where it can."""
    reasons: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=TIMEOUT_S).close()
        except OSError as error:
            reasons.append(f"cannot connect to {host}:{port} ({error.strerror or error})")
        else:
            reasons.append("")

    # Looking up the name has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S + 1)
    return reasons[0] if reasons else f"{host}:{port} did not answer in {TIMEOUT_S:g} s"


@contextmanager
def quiet() -> Iterator[None]:
    """The libraries' own lines about retries stay out of the log; their error says the same once."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
