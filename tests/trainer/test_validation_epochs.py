"""Which epochs are validated, with what views, and what is written for those that are not."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.cli import main
from fasttrain.errors import Stopped
from fasttrain.report.result import accuracy
from fasttrain.trainer.module import ClassifierModule

Train = Callable[..., int]


def column(run_dir: Path, name: str) -> list[str]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def result(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "report/result.json").read_text())
    return found


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return torch.load(run_dir / "checkpoints/last.ckpt")["state_dict"]


@pytest.mark.parametrize(("every", "validated"), [("1", [1, 2, 3]), ("2", [2, 3]), ("null", [3])])
def test_validated_epochs_and_what_is_written_of_them(
    train_tiny: Train, tmp_path: Path, every: str, validated: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert train_tiny(f"run_dir={run_dir}", f"trainer.validate_every_epochs={every}") == 0
    output = capsys.readouterr().out
    assert output.count("| not validated |") == 3 - len(validated)
    assert column(run_dir, "epoch") == ["1", "2", "3"]
    assert [epoch for epoch, top1 in enumerate(column(run_dir, "top1"), 1) if top1] == validated
    tsv = (run_dir / "report/dawnbench.tsv").read_text().splitlines()
    assert [int(line.split("\t")[0]) for line in tsv[1:]] == validated
    log = (run_dir / "report/mlperf.log").read_text()
    counts = [log.count(f'"key": "{key}"') for key in ("epoch_start", "epoch_stop", "eval_start", "eval_accuracy")]
    assert counts == [3, 3, len(validated), len(validated)]
    found = result(run_dir)
    assert found["top1"] == float(column(run_dir, "top1")[-1])
    assert found["seconds_with_final_validation"] > found["seconds"]
    assert main(["report", str(run_dir)]) == 0
    assert "report.html could not be written" not in output


def test_a_validation_less_changes_no_weight(train_tiny: Train, tmp_path: Path) -> None:
    for name, every in (("each", "1"), ("last", "null")):
        assert train_tiny(f"run_dir={tmp_path / name}", f"trainer.validate_every_epochs={every}") == 0
    each, last = weights(tmp_path / "each"), weights(tmp_path / "last")
    assert [key for key in each if not torch.equal(each[key], last[key])] == []


def test_the_target_counts_where_it_is_looked_for(train_tiny: Train, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings = ("target.value=0.1", "target.stop=true", "trainer.validate_every_epochs=2")
    assert train_tiny(f"run_dir={run_dir}", *settings) == 0
    assert (result(run_dir)["epochs_to_target"], result(run_dir)["epochs"]) == (2, 2)


def test_a_run_that_diverges_is_found_without_a_validation(train_tiny: Train, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings = ("optimizer=sgd", "optimizer.lr=1e30", "trainer.validate_every_epochs=null")
    assert train_tiny(f"run_dir={run_dir}", *settings) == 5
    assert not list(run_dir.rglob("*.ckpt"))


def test_a_resume_keeps_the_epochs_without_validation(
    train_tiny: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("trainer.validate_every_epochs=null",)
    assert train_tiny(f"run_dir={tmp_path / 'straight'}", *settings) == 0
    original = ClassifierModule.on_train_batch_end

    def stop(self: ClassifierModule, *args: Any) -> None:
        original(self, *args)
        if self.step == 5:
            raise Stopped("stopped by the test", 130)

    with monkeypatch.context() as patched:
        patched.setattr(ClassifierModule, "on_train_batch_end", stop)
        assert train_tiny(f"run_dir={tmp_path / 'run'}", *settings) == 130
    assert not (tmp_path / "run/checkpoints/best.ckpt").exists()
    assert column(tmp_path / "run", "epoch") == ["1"]
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "resume=auto", *settings) == 0
    assert (tmp_path / "run/checkpoints/best.ckpt").exists()
    for name in ("top1", "step", "train_loss"):
        assert column(tmp_path / "run", name) == column(tmp_path / "straight", name)


def test_the_accuracy_that_counts_is_with_the_views_and_the_plain_one_stands_beside_it(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, augmented = tmp_path / "plain", tmp_path / "augmented"
    assert train_tiny(f"run_dir={plain}") == 0
    assert train_tiny(f"run_dir={augmented}", "trainer.test_time_augmentation=flip_shift") == 0
    without, with_views = result(plain), result(augmented)
    assert (without["test_time_augmentation"], without["plain_top1"]) == ("none", None)
    assert with_views["test_time_augmentation"] == "flip_shift"
    # The views change no weight, so that the plain accuracy is that of the run without them.
    assert with_views["plain_top1"] == without["top1"]
    assert f"(plain top1 {accuracy(without['top1'])})" in capsys.readouterr().out
    assert main(["eval", str(augmented / "checkpoints/last.ckpt"), "--json", str(tmp_path / "eval.json")]) == 0
    assert "; test-time augmentation flip_shift" in capsys.readouterr().out
    assert json.loads((tmp_path / "eval.json").read_text())["top1"] == pytest.approx(with_views["top1"], abs=1e-3)
    assert "last top1 without it" in (augmented / "report/report.html").read_text()
    assert "last top1 without it" not in (plain / "report/report.html").read_text()
