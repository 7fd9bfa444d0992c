"""A GPU's context is begun by the driver's calls in their order, and only where all is well."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest

from fasttrain.config.schema import RunConfig
from fasttrain.run import planning
from fasttrain.strategy import early_context
from fasttrain.strategy.world import World
from tests.report.conftest import make_config

SUCCESS, NO_DEVICE, INVALID_DEVICE = 0, 100, 101  # CUresult of the driver API


class Driver:
    """The driver's three functions; a machine with ``num_devices`` GPUs, whose handles are ten above their numbers."""

    def __init__(self, num_devices: int) -> None:
        self.num_devices, self.calls = num_devices, list[tuple[Any, ...]]()

    def cuInit(self, flags: int) -> int:  # noqa: N802
        self.calls.append(("init", flags))
        return SUCCESS if self.num_devices else NO_DEVICE

    def cuDeviceGet(self, handle: Any, number: int) -> int:  # noqa: N802
        self.calls.append(("get", number))
        if number >= self.num_devices:
            return INVALID_DEVICE
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_int))[0] = 10 + number
        return SUCCESS

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: ctypes.c_int) -> int:  # noqa: N802
        self.calls.append(("retain", handle.value))
        return SUCCESS


@pytest.mark.parametrize(
    ("num_devices", "calls"),
    [(4, [("init", 0), ("get", 2), ("retain", 12)]), (1, [("init", 0), ("get", 2)]), (0, [("init", 0)])],
)
def test_what_the_driver_is_asked(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, calls: list[tuple[Any, ...]]
) -> None:
    driver = Driver(num_devices)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    early_context.begin_context(2).join()
    assert driver.calls == calls


@pytest.mark.parametrize("loaded", [OSError("no such file"), object()])
def test_without_a_driver_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, loaded: object) -> None:
    failures: list[Any] = []

    def load(name: str) -> object:
        if isinstance(loaded, OSError):
            raise loaded
        return loaded

    monkeypatch.setattr("threading.excepthook", failures.append)
    monkeypatch.setattr(ctypes, "CDLL", load)
    early_context.begin_context(0).join()
    assert failures == []


@pytest.mark.parametrize(
    ("accelerator", "size", "launcher", "begun"),
    [
        ("auto", 1, "self", [1]),
        ("gpu", 8, "torchrun", [1]),
        ("cpu", 1, "self", []),
        ("gpu", 8, "self", []),  # its ranks will, each for itself
    ],
)
def test_who_begins_a_context(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, size: int, launcher: str, begun: list[int]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(planning, "begin_context", asked.append)
    config: RunConfig = make_config(trainer={"accelerator": accelerator})
    world = World(rank=1, local_rank=1, size=size, local_size=size, launcher=launcher)
    planning.begin_device(config, world)
    assert asked == begun


# Says whether the context is there before torch has asked for one, and that torch computes in it.
ON_A_GPU = """
import ctypes, sys
from fasttrain.strategy.early_context import DRIVER, begin_context
begin_context(0).join()
flags, active = ctypes.c_uint(), ctypes.c_int()
assert ctypes.CDLL(DRIVER).cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
import torch
assert not torch.cuda.is_initialized()
print(active.value, torch.arange(4, device="cuda").sum().item())
"""


@pytest.mark.gpu
def test_torch_computes_in_the_context_that_was_begun() -> None:
    done = subprocess.run([sys.executable, "-c", ON_A_GPU], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 6\n"), done.stderr
