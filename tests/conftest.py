"""What several rooms' tests need: a tiny image folder, and a run of a few steps on it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# As the program does; before anything imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from fasttrain.cli import main
from fasttrain.data.shapes import make_shapes

# 16 classes; 64 training and 32 validation images.
NUM_TRAIN, NUM_VAL = 64, 32

# Three epochs in two stages of other px and batch: 4, 4 and 2 steps.
STAGES = (
    "[{epochs: 2, px: 32, min_area: 0.35, batch_size: 16, val_px: 32},"
    " {epochs: 1, px: 48, min_area: 0.35, batch_size: 32, val_px: 48}]"
)


# Files that take half a minute and more, the longest first: two workers that take a file at a time end together only if
# these are begun first.
LONG_FILES = (
    "cli/test_recipes.py",
    "strategy/test_gloo_ranks.py",
    "strategy/test_training.py",
    "trainer/test_two_ranks_averaging.py",
    "model/test_kernels_interpreted.py",
    "strategy/test_accelerate.py",
    "trainer/test_averaged_runs.py",
    "trainer/test_resume.py",
    "trainer/test_signals.py",
    "trainer/test_two_ranks.py",
    "bench/test_bench_step.py",
    "bench/test_bench_data.py",
    "bench/test_bench_ddp.py",
    "data/test_crop_kernel.py",
    "strategy/test_registration.py",
    "cli/test_kill.py",
    "trainer/test_compiled.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files; skip what needs more GPUs than there are."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    needs = {"gpu": 1, "multi_gpu": 2}
    for item in items:
        wanted = max((needs[mark.name] for mark in item.iter_markers() if mark.name in needs), default=0)
        if wanted and wanted > _num_gpus():
            item.add_marker(pytest.mark.skip(reason=f"needs {wanted} CUDA devices"))


@functools.cache
def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's own images in small: ``train/`` and ``val/`` of 16 classes at 48 px."""
    root = tmp_path_factory.mktemp("data") / "shapes"
    make_shapes(root, num_train=NUM_TRAIN, num_val=NUM_VAL, px=48, workers=0)
    return root


@pytest.fixture
def tiny_overrides(tiny_images: Path) -> list[str]:
    """Settings that make recipe=quickstart a run of seconds on the tiny images."""
    return [
        "recipe=quickstart",
        "data=imagefolder",
        f"data.root={tiny_images}",
        f"data.num_train={NUM_TRAIN}",
        f"data.num_val={NUM_VAL}",
        "data.num_classes=16",
        "data.workers=0",
        "data.backend=torchvision",
        "model.name=test_resnet",
        f"stages={STAGES}",
        "schedule.warmup_epochs=1",
        "target.value=99",
        "trainer.accelerator=cpu",
        "trainer.compile=false",
        "trainer.precision=fp32",
        "deterministic=true",
    ]


@pytest.fixture
def train_tiny(tiny_overrides: list[str]) -> Callable[..., int]:
    """``train_tiny("key=value", ...)`` trains in this process and returns the exit code."""

    def train(*overrides: str) -> int:
        return main(["train", *tiny_overrides, *overrides])

    return train


@pytest.fixture(autouse=True)
def _pictures_are_drawn_in_their_own_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time of a tiny run would be the pictures of its report; those in tests/report are drawn."""
    if "report" not in request.path.parts:
        monkeypatch.setattr("fasttrain.report.page.draw_run", lambda run: [])


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is said to the user from here on, a line each, whatever a test before has done to the loggers."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, listener = logging.getLogger("fasttrain"), Listener()
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(listener)
