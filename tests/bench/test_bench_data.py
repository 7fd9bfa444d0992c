"""``fasttrain bench data`` from its words to its record, on a CPU and in small."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from fasttrain.bench.data_parts import rows_of_batches
from fasttrain.bench.stage_change import Visit, lost_seconds
from fasttrain.cli import main
from tests.bench.test_bench_step import figures_of
from tests.data.samples import write_cifar10

needs_dali = pytest.mark.skipif(not importlib.util.find_spec("nvidia.dali"), reason="DALI is not installed")
SMALL = ["--batch", "8", "--repeats", "2", "--seconds", "0.01"]


def words(root: Path, backend: str, record: Path) -> list[str]:
    settings = ["recipe=quickstart", "data=imagefolder", f"data.root={root}", f"data.backend={backend}"]
    return ["bench", "data", *settings, "data.workers=1", "trainer.accelerator=cpu", *SMALL, "--json", str(record)]


@pytest.mark.parametrize("backend", ["torchvision", pytest.param("dali", marks=needs_dali)])
def test_every_part_that_applies(
    tiny_images: Path, tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "data.json"
    assert main([*words(tiny_images, backend, record), "--px", "24,32", "--need", "1e9,1"]) == 0
    found = figures_of(record)
    parts = {"read", "headers", "decode", "backend", "normalize", "train_epoch"}
    if backend == "dali":
        parts |= {"decode_region", "bare DALI"}
    for px in (24, 32):
        rates = {name for name, unit in found if unit == "images/s" and name.endswith(f", {px} px")}
        assert rates == {f"{part}, {px} px" for part in {*parts, "need of the training step"}}
        assert all(found[f"{part}, {px} px", "images/s"]["n"] == 2 for part in parts)
        assert ((f"DALI path of fasttrain over bare DALI, {px} px", "ratio") in found) == (backend == "dali")
    content = json.loads(record.read_text())
    assert content["verdicts"]["32 px"] == "the training step limits: data keeps up with its 1 images/s"
    assert "of 1,000,000,000 images/s (0 %)" in content["verdicts"]["24 px"]
    assert "transfer not measured: there is no GPU" in content["notes"]
    assert f"data path, 24 px, batch 8, {backend}" in capsys.readouterr().out


def test_the_need_is_measured_with_the_step(
    tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "data.json"
    assert main([*words(tiny_images, "torchvision", record), "--px", "32", "--parts", "read"]) == 0
    assert capsys.readouterr().out.startswith("need of the training step | 32 px, batch 8: ")
    found = figures_of(record)
    timed = {"read, 32 px", "train_epoch, 32 px"}
    assert {name for name, unit in found if unit == "images/s"} == {*timed, "need of the training step, 32 px"}
    assert {name for name, unit in found if unit == "us/image"} == {f"host time of {name}" for name in timed}
    assert all(found[f"host time of {name}", "us/image"]["min"] > 0 for name in timed)


@pytest.mark.parametrize(
    "backend", [pytest.param("torchvision", marks=pytest.mark.slow), pytest.param("dali", marks=needs_dali)]
)
def test_stage_changes_and_the_first_pass(
    tiny_images: Path, tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "data.json"
    more = ["--px", "24,32", "--parts", "read", "--need", "none", "--stage-changes", "3", "--first-pass"]
    assert main([*words(tiny_images, backend, record), *more]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " | " in line]
    begins = ["data path | 24 px: read ", "data path | 32 px: read ", "stage changes: 3 | "]
    begins += [f"first pass {turn}/2 | 24 px: decode, fill, train " for turn in (1, 2)]
    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True)), lines
    found = figures_of(record)
    assert found["training time lost by a stage change", "ms"]["n"] == 3
    after = [found[f"resident memory of the process after {n}", "MiB"]["median"] for n in ("1 change", "3 changes")]
    growth = found["resident memory of the process: growth from the first change to the last", "fraction"]["median"]
    assert growth == pytest.approx(after[1] / after[0] - 1)
    trained = found["first pass: decode, fill, train, 24 px", "images/s"]
    decoded = found["decode only, 24 px", "images/s"]
    assert trained["n"] == decoded["n"] == found["first pass over decode only, 24 px", "ratio"]["n"] == 2
    # Nothing is kept, so nothing is decoded whole.
    assert not any("whole images" in name for name, _ in found)


def test_the_first_pass_beside_decoding_what_fills_the_cache(
    tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "data.json"
    more = ["data.cache=host", "trainer.device_batch_size=4", "--px", "32", "--parts", "read", "--need", "none"]
    assert main([*words(tiny_images, "torchvision", record), *more, "--first-pass"]) == 0
    said = capsys.readouterr().out
    assert "images/s, whole images " in said
    assert "first pass, 32 px: 3 steps of an epoch count" in said
    found = figures_of(record)
    trained, whole, ratio = (
        found[f"{name}, 32 px", unit]
        for name, unit in (
            ("first pass: decode, fill, train", "images/s"),
            ("decode only, whole images", "images/s"),
            ("first pass over decode only, whole images", "ratio"),
        )
    )
    assert trained["n"] == whole["n"] == ratio["n"] == 2
    assert trained["min"] / whole["max"] <= ratio["median"] <= trained["max"] / whole["min"]


def test_too_few_images(tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = words(tiny_images, "torchvision", tmp_path / "data.json")
    assert main([*command, "--batch", "100"]) == 2
    assert "--batch 100: the set has 64 training images" in capsys.readouterr().err
    more = ["--px", "32", "--batch", "32", "--parts", "read", "--need", "none", "--first-pass"]
    assert main([*command, *more]) == 2
    error = capsys.readouterr().err
    assert "an epoch has 2 steps" in error
    assert "--batch 2" in error


def test_images_in_memory_have_no_files_to_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path, num_per_file=4)
    record = tmp_path / "data.json"
    settings = ["recipe=cifar10_basic", f"data.root={tmp_path}", "data.num_train=20", "data.num_val=4"]
    settings += ["data.num_classes=null", "data.backend=torchvision", "trainer.accelerator=cpu"]
    assert main(["bench", "data", *settings, *SMALL, "--px", "32", "--need", "none", "--json", str(record)]) == 0
    rates = {name for name, unit in figures_of(record) if unit == "images/s"}
    assert rates == {"backend, 32 px", "normalize, 32 px", "train_epoch, 32 px"}


def test_lost_time_is_what_the_first_batch_takes_beyond_the_usual() -> None:
    before, after = Visit(96, 0.0, (0.3, 0.1, 0.1, 0.1)), Visit(128, 0.25, (0.2, 0.2))
    assert lost_seconds(before, after) == pytest.approx(0.15)


def test_batches_go_on_from_epoch_to_epoch() -> None:
    rows = rows_of_batches(10, 4, seed=1)
    first, second = ([next(rows).tolist() for _ in range(2)] for _ in range(2))
    for batches in (first, second):
        flat = [row for batch in batches for row in batch]
        assert len(set(flat)) == 8
        assert set(flat) <= set(range(10))
    assert first != second
