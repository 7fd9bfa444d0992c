"""Signals are remembered, and a process that cannot act on one does not stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fasttrain.errors import Stopped
from fasttrain.trainer.signals import StopSignals

ROOT = Path(__file__).resolve().parents[2]


def test_a_signal_in_training_is_remembered_and_the_handlers_come_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    threads = threading.active_count()
    signals = StopSignals()
    signals.install()
    signals.training = True
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.requested == signal.SIGTERM
    assert signals.exit_code() == 143
    signals.restore()
    assert {number: signal.getsignal(number) for number in before} == before
    for thread in threading.enumerate():
        if thread.daemon:
            thread.join(timeout=5)
    assert threading.active_count() == threads


@pytest.mark.parametrize("speaks", [True, False])
def test_the_first_signal_in_training_is_answered_at_once(capfd: pytest.CaptureFixture[str], speaks: bool) -> None:
    signals = StopSignals(speaks=speaks)
    signals.install()
    signals.training = True
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert capfd.readouterr().err == ("stopping after this step\n" if speaks else "")
    finally:
        signals.restore()


def test_without_a_terminal_a_signal_is_remembered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> int:
        raise BrokenPipeError

    signals = StopSignals()
    signals.training = True
    monkeypatch.setattr(os, "write", gone)
    signals._handle(signal.SIGINT, None)
    assert signals.requested == signal.SIGINT


def test_a_second_ctrl_c_ends_the_run_at_once() -> None:
    signals = StopSignals()
    signals.install()
    signals.training = True
    try:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.exit_code() == 130
    finally:
        signals.restore()


def test_before_training_a_signal_ends_the_run_where_it_arrives() -> None:
    signals = StopSignals()
    signals.install()
    try:
        with pytest.raises(Stopped) as caught:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert caught.value.exit_code == 143
        assert str(caught.value) == "stopped: before the first training step; nothing was lost"
    finally:
        signals.restore()


def test_a_process_stuck_outside_python_ends_after_the_grace() -> None:
    # The main thread locks a mutex twice in C, as one that waits in a collective: Python's handlers never run.
    program = (
        "import ctypes, os, signal, threading\n"
        "import fasttrain.trainer.signals as module\n"
        "module.GRACE_S = 0.2\n"
        "signals = module.StopSignals()\n"
        "signals.install()\n"
        "signals.training = True\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
        "libc.pthread_mutex_lock(mutex)\n"
        "libc.pthread_mutex_lock(mutex)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=50, capture_output=True, text=True)
    assert done.returncode == 143, done.stderr
    assert "no step boundary was reached" in done.stderr
