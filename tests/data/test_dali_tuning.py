"""The hardware decoder's share, and what a stage change does to DALI's pipelines."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fasttrain.bench.stage_change import resident_bytes
from fasttrain.data import backend_choice
from fasttrain.data.augment import RandomResizedCrop
from fasttrain.data.backend import Request
from fasttrain.data.check import check
from fasttrain.data.path import build_data_path
from fasttrain.data.scan import Split, scan
from fasttrain.errors import DataError
from fasttrain.stages import Plan
from tests.data.samples import make_config, make_plan

pytest.importorskip("nvidia.dali")

from fasttrain.data import dali_backend, dali_tuning
from fasttrain.data.dali_backend import DaliBackend
from fasttrain.data.dali_stages import HARDWARE_DECODER_LOAD, Stage
from fasttrain.data.dali_tuning import CANDIDATES, MIN_IMAGES, SLOW_SECONDS, fastest_load, reading_threads

CPU = torch.device("cpu")


def requests(folder: Path, count: int = 3) -> tuple[Split, list[Request]]:
    """Batches of five training images at 32 px."""
    split = scan(make_config(root=str(folder))).train
    rows = [np.arange(5 * k, 5 * k + 5) for k in range(count)]
    return split, [Request(split, r, 32, 32, RandomResizedCrop.draw(1, 0, r, min_area=0.3)) for r in rows]


def decoded(backend: DaliBackend, wanted: list[Request]) -> list[torch.Tensor]:
    return [images for _, images in backend.images(wanted)]


def start(load: float | None) -> DaliBackend:
    return DaliBackend(device=CPU, workers=1, max_batch=8, encoded=True, hw_decoder_load=load)


def test_the_measurement_changes_no_image(folder: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr("fasttrain.data.dali_backend.TUNE_SECONDS", 0.05)
    _, wanted = requests(folder)
    fixed, tuned = start(0.65), start(None)
    for ours, reference in zip(decoded(tuned, wanted), decoded(fixed, wanted), strict=True):
        assert torch.equal(ours, reference)
    decoded(tuned, wanted)
    # Once a run, and only where it was asked for.
    (message,) = said
    assert message.startswith("data.hw_decoder_load=auto: ")
    assert tuned.decoder_options["hw_decoder_load"] in CANDIDATES
    assert fixed.decoder_options["hw_decoder_load"] == 0.65
    fixed.close()
    tuned.close()


def test_every_candidate_gets_its_turn_until_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, built = start(0.5), []
    ticks = itertools.count()  # a clock on which each look takes a tenth of a second
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 10)
    monkeypatch.setattr("fasttrain.data.dali_tuning.time", clock)

    def build(load: float) -> Stage:
        built.append(load)
        return backend._pixel_stage(load)

    inputs = backend._example | {"image": [np.fromfile(backend._odd.stand_in, dtype=np.uint8)]}
    best, found = fastest_load(inputs, 1, build, CPU, candidates=(0.1, 0.2), seconds=8.0)
    assert built == [0.1, 0.2]
    assert best in found
    assert found.keys() == {0.1, 0.2}
    assert all(rate > 0 for rate in found.values())
    best, found = fastest_load(inputs, 1, build, CPU, candidates=(0.3, 0.4), seconds=0.0)
    assert (best, list(found)) == (0.3, [0.3])
    backend.close()


def test_a_bad_file_in_the_measured_batch_is_named(folder: Path, tmp_path: Path) -> None:
    split, (first, *_) = requests(folder)
    bad = tmp_path / "bad.JPEG"
    bad.write_bytes(Path(split.paths[0]).read_bytes()[:200])
    broken = Split([str(bad), *split.paths[1:]], split.labels)
    backend = start(None)
    with pytest.raises(DataError, match=str(bad)):
        decoded(backend, [Request(broken, first.rows, 32, 32, first.crop)])
    backend.close()


@pytest.mark.parametrize(
    ("given", "images", "device", "deterministic", "load"),
    [
        ("0.3", MIN_IMAGES, "cuda", False, 0.3),
        ("auto", MIN_IMAGES, "cuda", False, None),
        ("auto", MIN_IMAGES - 1, "cuda", False, HARDWARE_DECODER_LOAD),
        ("auto", MIN_IMAGES, "cpu", False, HARDWARE_DECODER_LOAD),
        ("auto", MIN_IMAGES, "cuda", True, HARDWARE_DECODER_LOAD),
    ],
)
def test_where_it_is_measured(given: str, images: int, device: str, deterministic: bool, load: float | None) -> None:
    config: Any = SimpleNamespace(data=SimpleNamespace(hw_decoder_load=given, cache="off"), deterministic=deterministic)
    plan: Any = SimpleNamespace(epochs=[SimpleNamespace(images=images)] * 2, world_size=2, num_train=images)
    assert backend_choice._hw_decoder_load(config, plan, torch.device(device)) == load
    if load is None:
        # Decoded once for each of two ranks is too little.
        config.data.cache = "gpu"
        assert backend_choice._hw_decoder_load(config, plan, torch.device(device)) == HARDWARE_DECODER_LOAD


@pytest.mark.parametrize(("value", "wrong"), [("auto", 0), ("0", 0), ("1", 0), ("0.4", 0), ("1.1", 1), ("half", 1)])
def test_the_setting(folder: Path, value: str, wrong: int) -> None:
    problems = check(make_config(root=str(folder), hw_decoder_load=value))
    assert [problem.what for problem in problems] == [
        f"data.hw_decoder_load={value}: expected auto or a share from 0 to 1"
    ] * wrong


def ten_changes(folder: Path) -> tuple[Plan, Any]:
    stages = [{"epochs": 1, "px": px, "batch_size": size} for px, size in ((48, 13), (24, 8)) * 6]
    config = make_config(stages, root=str(folder), backend="dali", workers=1)
    found = scan(config)
    plan = make_plan(config, found.num_train)
    return plan, build_data_path(config, found, plan, device=CPU, rank=0, world_size=1)


def test_a_stage_change_builds_nothing_and_brings_no_old_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, path = ten_changes(folder)
    expected = [[batch.images_nhwc for step in path.train_epoch(epoch) for batch in step] for epoch in plan.epochs]
    monkeypatch.setattr("fasttrain.data.dali_stages.Pipeline", forbidden("a pipeline was built"))
    for epoch, whole in zip(plan.epochs, expected, strict=True):
        # Left in the middle, with batches of the old px under way.
        step = next(iter(path.train_epoch(epoch)))
        assert torch.equal(step[0].images_nhwc, whole[0])
        assert step[0].images_nhwc.shape == (epoch.batch_size, epoch.px, epoch.px, 3)
    path.close()


def test_memory_is_flat_after_ten_changes(folder: Path) -> None:
    plan, path = ten_changes(folder)
    used = []
    for _ in range(2):
        for epoch in plan.epochs:
            for _ in path.train_epoch(epoch):
                pass
        used.append(resident_bytes())
    # Over the second round's 12 changes.
    assert used[1] - used[0] < 16 << 20
    path.close()


def forbidden(why: str) -> Callable[..., None]:
    def call(*_: Any, **__: Any) -> None:
        raise AssertionError(why)

    return call


@pytest.mark.parametrize(
    ("seconds", "most", "expected"),
    [
        ([SLOW_SECONDS / 5], 8, 2),
        ([SLOW_SECONDS * 5], 8, 8),
        ([SLOW_SECONDS / 5], 1, 1),
        # One file that waits for something says nothing of the others.
        ([1.0, *[SLOW_SECONDS / 5] * 4], 8, 2),
    ],
)
def test_slow_files_are_read_with_more_threads(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], most: int, expected: int
) -> None:
    times = itertools.cycle(seconds)
    monkeypatch.setattr(dali_tuning, "seconds_to_read", lambda path: next(times))
    assert reading_threads([str(number) for number in range(len(seconds))], most) == expected


def test_files_that_cannot_be_read_say_nothing_of_their_speed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.JPEG"
    os.mkfifo(pipe)
    assert reading_threads([str(tmp_path / "none.JPEG"), str(tmp_path), str(pipe)], 8) == 2


def test_images_stay_the_same_when_the_readers_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, wanted = requests(folder, count=4)
    backend = DaliBackend(device=CPU, workers=4, max_batch=8, encoded=True)
    expected = [images for _, images in backend.images(wanted)]
    numbers = itertools.cycle([4, 1])
    monkeypatch.setattr(dali_backend, "reading_threads", lambda paths, most: next(numbers))
    # The second call changes the threads while the first one's batches are under way.
    first = backend.images(wanted)
    got = [next(first)]
    second = list(backend.images(wanted))
    got += first
    for found in (got, second):
        assert len(found) == 4
        assert all(torch.equal(images, other) for (_, images), other in zip(found, expected, strict=True))
    backend.close()
