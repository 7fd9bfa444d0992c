"""``fasttrain bench step`` from its words to its record, on a CPU and in small."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fasttrain.bench.arguments import read_step_flags
from fasttrain.bench.arms import BENCH_LR, Shape, build_arms, check_arms, measured_run
from fasttrain.bench.training import count_launches
from fasttrain.cli import main
from fasttrain.errors import ConfigError, DeviceLost, Problem

SMALL = ["recipe=quickstart", "--px", "32", "--batch", "8", "--steps", "6", "trainer.accelerator=cpu"]
KEYS = {
    "schema",
    "bench",
    "recipe",
    "overrides",
    "command",
    "commit",
    "hardware",
    "versions",
    "clock",
    "figures",
    "verdicts",
    "notes",
}


def figures_of(record: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The figures of a record by name and unit, each of which must be whole and finite."""
    content = json.loads(record.read_text(encoding="utf-8"))
    assert content.keys() == KEYS
    for row in content["figures"]:
        assert row.keys() == {"name", "unit", "n", "median", "min", "max"}
        assert row["n"] >= 1
        assert all(math.isfinite(row[key]) for key in ("median", "min", "max"))
        assert row["min"] <= row["median"] <= row["max"]
    found = {(row["name"], row["unit"]): row for row in content["figures"]}
    assert len(found) == len(content["figures"])
    return found


def test_settings_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "step.json"
    words = ["--repeats", "2", "--optimizers", "sgd,hybrid", "--bare", "--launches", "--json", str(record)]
    assert main(["bench", "step", *SMALL, *words]) == 0
    found = figures_of(record)
    for optimizer in ("sgd", "hybrid"):
        name = f"32 px, batch 8, {optimizer}"
        rate, ms = found[f"step, {name}", "images/s"], found[f"step, {name}", "ms"]
        assert rate["n"] == ms["n"] == found[f"bare loop, {name}", "images/s"]["n"] == 2
        assert ms["min"] == pytest.approx(1e3 * 8 / rate["max"])
        assert (f"Lightning's loop over the bare loop, {name}", "ratio of medians") in found
    out = capsys.readouterr().out
    lines = [line.split(" | ") for line in out.splitlines() if line.startswith("round ")]
    assert [line[:2] for line in lines] == [
        [f"round {number}/2", optimizer] for number in (1, 2) for optimizer in ("sgd", "hybrid") for _ in range(2)
    ]
    assert all(line[2].startswith("32 px, batch 8: ") and line[2].endswith(" images/s") for line in lines[::2])
    assert all(line[3].endswith(" s warm-up and compilation") for line in lines[::2])
    assert all(line[2].startswith("bare loop, 32 px, batch 8: ") for line in lines[1::2])
    assert "training step, test_resnet, hybrid" in out
    assert "no roofline: unknown chip (CPU)" in out
    assert "launches not counted" in out
    assert "projected" not in out


def test_a_recipe_has_a_row_for_each_stage_and_a_projected_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "step.json"
    stages = "[{epochs: 2, px: 32, min_area: 0.5, batch_size: 8, val_px: 32}, {epochs: 1, px: 40, min_area: 0.5, "
    stages += "batch_size: 4, val_px: 40}]"
    words = ["recipe=quickstart", f"stages={stages}", "data.num_train=80", "report.cost_per_hour=2"]
    words += ["trainer.accelerator=cpu", "--steps", "6", "--repeats", "1", "--json", str(record)]
    assert main(["bench", "step", *words]) == 0
    found = figures_of(record)
    # 2 epochs of 80 images and 1 of 80.
    first, second = found["step, 32 px, batch 8", "images/s"], found["step, 40 px, batch 4", "images/s"]
    seconds = found["projected training time of quickstart", "s"]["median"]
    assert seconds == pytest.approx(160 / first["median"] + 80 / second["median"])
    assert found["projected training cost of quickstart", "USD"]["median"] == pytest.approx(seconds / 1800, abs=1e-4)
    assert "projected from these rates, not trained: quickstart" in capsys.readouterr().out


def test_files_beside_random_pixels(tiny_images: Path, tmp_path: Path) -> None:
    record = tmp_path / "step.json"
    data = ["data=imagefolder", f"data.root={tiny_images}", "data.backend=torchvision", "data.workers=0"]
    assert (
        main(["bench", "step", *SMALL, *data, "--repeats", "2", "--data", "files,random", "--json", str(record)]) == 0
    )
    found = figures_of(record)
    rates = [found[f"step, 32 px, batch 8, {source}", "images/s"] for source in ("files", "random")]
    assert [rate["n"] for rate in rates] == [2, 2]
    ratio = found["files over random, 32 px, batch 8", "ratio of medians"]["median"]
    assert ratio == pytest.approx(rates[0]["median"] / rates[1]["median"])


def test_every_combination_is_an_arm() -> None:
    words = ["recipe=resnet50_dawnbench", "--precision", "bf16,fp32", "--compile", "on,off", "--data", "random"]
    arms = build_arms(read_step_flags(words))
    assert [arm.label for arm in arms] == [
        "bf16, compile on",
        "bf16, compile off",
        "fp32, compile on",
        "fp32, compile off",
    ]
    trainers = [arm.run.config.trainer for arm in arms]
    assert [(trainer.precision, trainer.compile) for trainer in trainers[:2]] == [("bf16", True), ("bf16", False)]
    assert arms[0].shapes == (Shape(96, 2048), Shape(128, 2048), Shape(224, 2048), Shape(288, 1024))
    check_arms(arms, bare=False)


def test_the_measured_run() -> None:
    (arm,) = build_arms(read_step_flags(["recipe=resnet50_dawnbench", "--px", "96,160", "--batch", "64"]))
    short = measured_run(arm, repeats=2, steps=7, world_size=2, num_classes=1000, extra_rows=1)
    config = short.run.config
    # The last row makes the run as long as the recipe, for rules that speak of its epochs.
    shapes = [(row.px, row.batch_size, row.epochs) for row in config.stages]
    assert shapes == [(96, 64, 1), (160, 64, 1), (96, 64, 1), (160, 64, 1), (96, 64, 1), (160, 64, 28)]
    assert (config.data.num_train, config.data.num_val, config.trainer.steps_per_stage) == (448, 2, 7)
    assert (config.optimizer.lr, config.schedule.warmup_epochs, config.schedule.end_lr) == (BENCH_LR, 0, 0)
    # Of the settings that decide the step's time none is touched.
    assert config.model == arm.run.config.model
    assert config.trainer.device_batch_size == arm.run.config.trainer.device_batch_size


def test_random_labels_need_a_number_of_classes() -> None:
    words = ["recipe=quickstart", "data=imagefolder", "data.root=null", "data.num_classes=null"]
    with pytest.raises(ConfigError, match=r"data.num_classes=null[^\n]*\n[^\n]*data.num_classes=1000"):
        check_arms(build_arms(read_step_flags(words)), bare=False)


def test_a_lost_gpu_is_not_told_to_go_on_from_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(*_: Any) -> None:
        raise DeviceLost(Problem("the GPU gave up: x", "the same command with run_dir=y resume=auto goes on"))

    monkeypatch.setattr("fasttrain.run.training.fit", lose)
    monkeypatch.setattr("fasttrain.cli.leave_at_once", lambda code: None)
    assert main(["bench", "step", *SMALL]) == 4
    error = capsys.readouterr().err
    assert error.startswith("environment error: the GPU gave up: x\n    fix: measure again")
    assert "resume" not in error


def test_calls_that_start_work_on_the_device() -> None:
    names = [
        "cudaLaunchKernel",
        "cudaGraphLaunch",
        "cuLaunchKernelEx",
        "cudaDeviceSynchronize",
        "aten::add",
        "cudaFree",
    ]
    assert count_launches(names) == 3
