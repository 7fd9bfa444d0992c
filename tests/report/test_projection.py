"""Projected times: the arithmetic by hand, and what the files and settings must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fasttrain.cli import main
from fasttrain.config.schema import StageConfig
from fasttrain.errors import DataError
from fasttrain.report.projection import project, rate_at, read_rates
from fasttrain.stages import build_plan


def write_rates(path: Path, *figures: tuple[str, str, Any]) -> Path:
    rows = [{"name": name, "unit": unit, "n": 1, "median": m, "min": m, "max": m} for name, unit, m in figures]
    path.write_text(json.dumps({"figures": rows}))
    return path


def test_a_rate_between_measured_ones_is_a_line_of_seconds_over_pixels() -> None:
    rates = {100: 1000.0, 200: 250.0}
    assert rate_at(100, rates) == (1000.0, "measured")
    # (150^2 - 100^2) / (200^2 - 100^2) = 12500 / 30000 of the way from 1 ms to 4 ms: 2.25 ms.
    rate, known = rate_at(150, rates)
    assert rate == pytest.approx(1000 / 2.25)
    assert known == "interpolated between 100 and 200 px"
    assert rate_at(400, rates) == (62.5, "extrapolated from 200 px")
    assert rate_at(50, rates) == (4000.0, "extrapolated from 100 px")


def test_the_time_of_a_plan_by_hand() -> None:
    stages = [
        StageConfig(epochs=2, px=96, min_area=0.25, batch_size=40, val_px=96),
        StageConfig(epochs=1, px=128, min_area=0.25, batch_size=20, val_px=128),
    ]
    plan = build_plan(stages, num_train=100, world_size=1, device_batch_size=None, steps_per_stage=None)
    low, high = project(plan, {(96, 40): 24.0, (128, 20): 10.0})
    # 2 epochs of 3 x 40 images, 1 of 5 x 20.
    assert (low.images, low.seconds) == (240, 10.0)
    assert (high.images, high.seconds) == (100, 10.0)


def test_stages_of_one_px_have_the_rates_of_their_own_batches() -> None:
    stages = [StageConfig(epochs=1, px=96, min_area=0.25, batch_size=batch, val_px=96) for batch in (20, 50, 100)]
    plan = build_plan(stages, num_train=100, world_size=1, device_batch_size=None, steps_per_stage=None)
    times = project(plan, {(96, 20): 10.0, (96, 100): 50.0})
    # 50 is nearer to 100 (twice) than to 20 (2.5 times).
    assert [time.rate for time in times] == [10.0, 50.0, 50.0]
    assert [time.known for time in times] == ["measured", "measured at batch 100", "measured"]


def test_eight_gpus_have_the_rates_of_their_parts_of_the_batch() -> None:
    stages = [StageConfig(epochs=1, px=96, min_area=0.25, batch_size=80, val_px=96)]
    plan = build_plan(stages, num_train=100, world_size=1, device_batch_size=None, steps_per_stage=None)
    (one,), (eight,) = (project(plan, {(96, 80): 20.0, (96, 10): 5.0}, num_gpus) for num_gpus in (1, 8))
    # 2 steps of 80 images.
    assert (one.rate, one.seconds) == (20.0, 8.0)
    assert (eight.rate, eight.seconds, eight.known) == (5.0, 4.0, "measured")


def test_a_gpu_has_the_rate_of_what_it_takes_at_once() -> None:
    stages = [StageConfig(epochs=1, px=96, min_area=0.25, batch_size=80, val_px=96)]
    plan = build_plan(stages, num_train=100, world_size=1, device_batch_size=20, steps_per_stage=None)
    rates = {(96, 80): 20.0, (96, 20): 16.0, (96, 10): 5.0}
    assert [project(plan, rates, num_gpus)[0].rate for num_gpus in (1, 2, 8)] == [16.0, 16.0, 5.0]


def test_files_of_several_arms_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_rates(tmp_path / "one.json", ("step, 96 px, batch 2048, hybrid", "images/s", 36000.0))
    two = write_rates(tmp_path / "two.json", ("step, 224 px, batch 2048, fp32", "images/s", 7000.0))
    command = ["report", "--project", "recipe=resnet50_dawnbench", "--rates", str(one)]
    assert main([*command, "--rates", str(two)]) == 3
    assert f"rates of several arms: hybrid ({one}), fp32 ({two})" in capsys.readouterr().err
    record = json.loads(one.read_text())
    one.write_text(json.dumps({**record, "overrides": ["data.root=/x", "trainer.compile=false"]}))
    assert main(command) == 0
    assert "with hybrid, trainer.compile=false" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*command, "report.cost_per_hour=4"])
    assert "report.cost_per_hour=4: no such file; settings come after --project" in capsys.readouterr().err


def test_rates_in_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    low = write_rates(tmp_path / "low.json", ("step, 96 px, batch 2048", "images/s", 36000.0))
    high = write_rates(tmp_path / "high.json", ("step, 224 px, batch 2048", "images/s", 7000.0))
    command = ["report", "--project", "recipe=resnet50_dawnbench", "--rates", str(low)]
    assert main([*command, str(high)]) == 0
    said = capsys.readouterr().out
    assert said.count("measured on ") == 2
    assert "interpolated between 96 and 224 px" in said
    assert main([*command, str(low)]) == 3
    assert f"96 px, batch 2048 is in {low} too" in capsys.readouterr().err


def test_rates_are_the_steps_without_an_arm(tmp_path: Path) -> None:
    path = write_rates(
        tmp_path / "rates.json",
        ("step, 96 px, batch 2048", "images/s", 36000.0),
        ("step, 96 px, batch 2048", "ms", 57.0),
        ("bare loop, 96 px, batch 2048", "images/s", 37000.0),
        ("128 px, batch 2048", "images/s", 21000.0),
        ("96 px, batch 2048, 2 GPUs", "images/s", 70000.0),
    )
    assert read_rates(path) == ({(96, 2048): 36000.0, (128, 2048): 21000.0}, "")


STEP = "step, 96 px, batch"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nothing", "cannot be read as figures"),
        ({"figures": []}, "no figure in images/s"),
        ([(f"{STEP} 64", 1.0), (f"{STEP} 64", 2.0)], "96 px, batch 64 has two rates"),
        ([(f"{STEP} 64, sgd", 1.0), (f"{STEP} 64, hybrid", 2.0)], "rates of several arms: sgd, hybrid"),
        ([(f"{STEP} 64", 0.0)], "above 0"),
        ([(f"{STEP} 64", 1e-320)], "above 0"),
        ([(f"{STEP} 64", float("inf"))], "median inf: expected"),
        ([(f"{STEP} 64", float("nan"))], "median nan: expected"),
        ([(f"{STEP} 64", 10**400)], "expected images/s"),
        ([(f"{STEP} 64", True)], "median True: expected"),
        ([(f"{STEP} 64", "9")], "median '9': expected"),
        ([("step, 0 px, batch 64", 1.0)], "expected 8 to 1024 px"),
        ([(f"{STEP} 0", 1.0)], "a batch of 1 or more"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "rates.json"
    if isinstance(content, list):
        write_rates(path, *((name, "images/s", rate) for name, rate in content))
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=said):
        read_rates(path)


def test_the_command_prints_time_and_cost_on_one_and_eight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rates(tmp_path / "rates.json", ("step, 96 px, batch 2048", "images/s", 36000.0))
    settings = ["recipe=resnet50_dawnbench", "stages=[{epochs: 9, px: 96, min_area: 0.25, batch_size: 10, val_px: 96}]"]
    settings += ["data.num_train=1000000", "schedule.warmup_epochs=1", "report.cost_per_hour=36"]
    assert main(["report", "--project", *settings, "--rates", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "resnet50_dawnbench: projected from measured images/s, not trained"
    # 9,000,000 images at 36,000 a second: 250 s, 31.25 s on eight; $36 an hour is a cent a second.
    assert lines[2].split()[:7] == ["0", "9", "96", "36,000", "0:04:10", "36,000", "0:00:31"]
    assert lines[2].endswith("  measured at batch 2,048")
    assert lines[3].split() == ["all", "9", "0:04:10", "0:00:31"]
    assert lines[4].split() == ["cost", "$2.50", "$2.50"]


def test_flags_that_do_not_go_together() -> None:
    for arguments in (["--project", "recipe=quickstart"], ["--rates", "x.json"], []):
        with pytest.raises(SystemExit):
            main(["report", *arguments])


def test_rates_of_another_network_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rates(tmp_path / "rates.json", ("step, 96 px, batch 1024", "images/s", 1000.0))
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "recipe": "quickstart", "overrides": [], "hardware": "2-core CPU"}))
    assert main(["report", "--project", "recipe=resnet50_dawnbench", "--rates", str(path)]) == 3
    assert "but the recipe to project trains resnet50" in capsys.readouterr().err
    # resnet50_dawnbench_21 trains the same network.
    path.write_text(json.dumps({**record, "recipe": "resnet50_dawnbench_21", "hardware": "1 x NVIDIA H200"}))
    assert main(["report", "--project", "recipe=resnet50_dawnbench", "--rates", str(path)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("measured on 1 x NVIDIA H200")


def test_rates_of_a_benchmark_that_was_cut_short_are_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rates(tmp_path / "rates.json", ("step, 96 px, batch 1024", "images/s", 1000.0))
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "cut_short": {"why": "SIGTERM", "missing": ["step, 128 px (0 of 5)"]}}))
    assert main(["report", "--project", "recipe=resnet50_dawnbench", "--rates", str(path)]) == 0
    assert "its benchmark was cut short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"overrides": ["model.ensemble=1"]}, 3, "model.ensemble=1 (recipe=imagenette_128_5), but the recipe to"),
        ({"overrides": ["model.args.widths=[8,8,8]"]}, 3, "model.args={"),
        ({"overrides": ["model.ensembel=1"]}, 3, "overrides: "),
        ({"overrides": None}, 3, "a list of KEY=VALUE"),
        ({"overrides": "model.ensemble=1"}, 3, "a list of KEY=VALUE"),
        ({"recipe": None}, 3, "a name and a list"),
        ({"recipe": "of_another_folder"}, 0, ""),
        ({}, 0, ""),
    ],
)
def test_rates_are_of_the_whole_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: int, said: str
) -> None:
    path = write_rates(tmp_path / "rates.json", ("step, 128 px, batch 512", "images/s", 1000.0))
    path.write_text(json.dumps({**json.loads(path.read_text()), "recipe": "imagenette_128_5", **changes}))
    assert main(["report", "--project", "recipe=imagenette_128_5", "--rates", str(path)]) == code
    assert said in capsys.readouterr().err


def test_settings_that_cannot_be_run_are_not_projected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rates(tmp_path / "rates.json", ("step, 96 px, batch 1024", "images/s", 1000.0))
    words = ["recipe=resnet50_dawnbench", "schedule.warmup_epochs=100"]
    assert main(["report", "--project", *words, "--rates", str(path)]) == 2
    assert "the warm-up must end before the run does" in capsys.readouterr().err
