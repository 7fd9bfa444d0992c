"""What a run imports, and what importing leaves behind."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasttrain.run.imports import LAST, UNUSED, spared_imports

# Libraries that some runs need, and a run on CIFAR-10's records that does not compile does not.
NOT_NEEDED = ("nvidia.dali", "scipy.signal", "scipy.stats", "transformers", "torch._inductor.compile_fx")

# Trains, then says which modules there are, whether garbage is collected, and what of scipy is there when asked for.
RUN = """
import gc, json, sys
from fasttrain.cli import main
code = main(["train", *sys.argv[1:]])
found = {"code": code, "modules": sorted(sys.modules), "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}
import scipy.signal
found["peaks"] = scipy.signal.find_peaks([0, 1, 0])[0].tolist()
found["old_name"] = getattr(scipy.signal, "hamming", None) is None
print("\\n" + json.dumps(found))
"""

# Takes a name, then a submodule, out of scipy's module while the libraries are imported.
MEANWHILE = """
import sys
from fasttrain.run.imports import UNUSED, spared_imports
with spared_imports():
    placeholder = sys.modules[UNUSED]
    assert hasattr(placeholder, "hamming") and not hasattr(placeholder, "__file__")
    assert sys.modules[UNUSED] is placeholder
    from scipy.signal import find_peaks
    import scipy.signal.windows
    assert find_peaks([0, 1, 0])[0].tolist() == [1]
    assert len(scipy.signal.windows.hann(3)) == 3
assert sys.modules[UNUSED] is scipy.signal is not placeholder
"""


@pytest.fixture
def as_at_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lightning and scipy's module look as if they had not been imported yet."""
    monkeypatch.delitem(sys.modules, LAST, raising=False)
    monkeypatch.delitem(sys.modules, UNUSED, raising=False)
    yield
    gc.unfreeze()


def test_a_run_imports_what_it_needs(tmp_path: Path) -> None:
    from tests.data.samples import write_cifar10

    root = write_cifar10(tmp_path / "cifar10")
    counts = ["data.num_train=100", "data.num_val=20"]
    stages = "stages=[{epochs: 1, px: 32, min_area: 1, batch_size: 20, val_px: 32}]"
    trainer = [
        "trainer.accelerator=cpu",
        "trainer.precision=fp32",
        "trainer.compile=false",
        "trainer.steps_per_stage=1",
    ]
    settings = ["recipe=cifar10_basic", f"data.root={root}", *counts, stages, *trainer, "schedule.warmup_epochs=0"]
    command = [sys.executable, "-c", RUN, *settings, "model.name=test_resnet", f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stdout + done.stderr
    assert {"torch", "timm", LAST} <= set(found["modules"])
    assert [name for name in NOT_NEEDED if name in found["modules"]] == []
    # All that was imported is left alone by the collector, which works as before.
    assert found["collects"]
    assert found["frozen"] > 100_000
    # Who needs scipy gets the real one.
    assert found["peaks"] == [1]
    assert found["old_name"]
    parts = json.loads((tmp_path / "run" / "report" / "dawnbench.json").read_text())["misc"]["seconds_by_part"]
    assert list(parts)[:4] == ["setup: plan", "setup: libraries", "setup: build", "setup: trainer"]


@pytest.mark.usefixtures("as_at_first")
def test_the_collector_and_scipy_come_back_whatever_happens() -> None:
    def fail() -> None:
        with spared_imports():
            assert not gc.isenabled()
            assert UNUSED in sys.modules
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gc.isenabled()
    assert UNUSED not in sys.modules


def test_who_wants_more_of_scipy_meanwhile_gets_it() -> None:
    done = subprocess.run([sys.executable, "-c", MEANWHILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("as_at_first")
def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with spared_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_process_that_has_the_libraries_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, LAST, sys)
    frozen = gc.get_freeze_count()
    with spared_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
