"""First weights from training images: which images, when, and when not."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fasttrain.cli import main
from fasttrain.model.whitened import WHITENING_EPS, whitening_filters
from fasttrain.report.callback import ReportCallback
from fasttrain.trainer.first_images import InitializeFromImages
from tests.data.samples import write_cifar10

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 training and 20 validation images."""
    return write_cifar10(tmp_path_factory.mktemp("data") / "cifar-10-batches-bin")


@pytest.fixture
def settings(cifar: Path) -> list[str]:
    """recipe=cifar10_dawnbench with a thin network, two epochs of two steps."""
    return [
        "recipe=cifar10_dawnbench",
        f"data.root={cifar}",
        "data.num_train=100",
        "data.num_val=20",
        "model.args={widths: [8, 8, 8]}",
        "stages=[{epochs: 2, px: 32, min_area: 1.0, batch_size: 50, val_px: 32}]",
        "trainer.accelerator=cpu",
        "trainer.precision=fp32",
        "trainer.compile=false",
        "deterministic=true",
    ]


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return torch.load(run_dir / "checkpoints/last.ckpt")["state_dict"]


def expected_filters(cifar: Path) -> torch.Tensor:
    """From the files, by hand: every image is one of the first 5000."""
    records = [np.fromfile(cifar / f"data_batch_{i}.bin", dtype=np.uint8).reshape(-1, 3073) for i in range(1, 6)]
    images = torch.from_numpy(np.concatenate(records)[:, 1:].reshape(-1, 3, 32, 32).copy()).float() / 255
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    images = (images - mean[:, None, None]) / std[:, None, None]
    return whitening_filters(images, patch_px=2, eps=WHITENING_EPS)


def test_the_first_layer_whitens_the_training_images_on_the_clock(
    settings: list[str], cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[ReportCallback] = []
    started: list[bool] = []
    begin, look = ReportCallback.on_train_start, InitializeFromImages.on_train_start
    monkeypatch.setattr(ReportCallback, "on_train_start", lambda *a: (reports.append(a[0]), begin(*a))[1])
    monkeypatch.setattr(
        InitializeFromImages, "on_train_start", lambda *a: (started.append(reports[0].clock.started), look(*a))[1]
    )
    assert main(["train", *settings, f"run_dir={tmp_path / 'run'}"]) == 0
    assert started == [True]
    found, wanted = weights(tmp_path / "run")["whitening.weight"], expected_filters(cifar)
    # Signs, and directions among those of nearly equal variance, are the solver's choice, and another processor's is
    # another; what is left of them in this product is the same.
    of_patches = [filters.flatten(1).double() for filters in (found[:12], wanted)]
    torch.testing.assert_close(*[filters.T @ filters for filters in of_patches], rtol=1e-3, atol=1e-3)
    assert torch.equal(found[12:], -found[:12])


def test_given_weights_are_kept(settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["train", *settings, f"run_dir={tmp_path / 'run'}"]) == 0
    calls: list[object] = []
    monkeypatch.setattr(InitializeFromImages, "on_train_start", lambda *args: calls.append(args))
    checkpoint = tmp_path / "run/checkpoints/last.ckpt"
    longer = "stages=[{epochs: 3, px: 32, min_area: 1.0, batch_size: 50, val_px: 32}]"
    assert main(["train", *settings, longer, f"run_dir={tmp_path / 'more'}", f"resume={checkpoint}"]) == 0
    assert main(["train", *settings, f"run_dir={tmp_path / 'from'}", f"model.init_from={checkpoint}"]) == 0
    assert calls == []
    kept = [weights(tmp_path / name)["whitening.weight"] for name in ("run", "more", "from")]
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])


def test_a_sweep_over_seeds_is_one_group(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "-m", *settings, "seed=1,2"]) == 0
    capsys.readouterr()
    runs = sorted(str(path.parent) for path in tmp_path.rglob("config.yaml"))
    assert len(runs) == 2
    assert main(["report", *runs, "--json", str(tmp_path / "both.json")]) == 0
    (group,) = json.loads((tmp_path / "both.json").read_text())["groups"]
    assert (group["n"], group["seeds"]) == (2, [1, 2])
    for figure in ("top1", "plain_top1", "seconds", "seconds_with_final_validation"):
        assert group["figures"][figure]["n"] == 2


def test_two_ranks_have_one_first_layer(settings: list[str], tmp_path: Path) -> None:
    assert main(["train", *settings, f"run_dir={tmp_path / 'one'}"]) == 0
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *settings, f"run_dir={tmp_path / 'two'}", "trainer.devices=2"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (weights(tmp_path / name)["whitening.weight"] for name in ("one", "two"))
    assert torch.allclose(one, two, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", ["true", "false"])
def test_a_captured_step_reads_the_first_layer_that_images_have_set(
    settings: list[str], cifar: Path, tmp_path: Path, compiled: str
) -> None:
    """The graphs are captured before: what is set afterwards must be what they replay."""
    on_gpu = ["trainer.accelerator=gpu", f"trainer.compile={compiled}"]
    losses = {}
    for capture in ("true", "false"):
        run_dir = tmp_path / capture
        assert main(["train", *settings, *on_gpu, f"trainer.capture={capture}", f"run_dir={run_dir}"]) == 0
        with (run_dir / "metrics.csv").open(newline="") as file:
            losses[capture] = [float(row["train_loss"]) for row in csv.DictReader(file)]
    assert losses["true"] == pytest.approx(losses["false"], rel=1e-2)
    found, wanted = weights(tmp_path / "true")["whitening.weight"].cpu(), expected_filters(cifar)
    signs = torch.sign((found[:12] * wanted).sum(dim=(1, 2, 3)))[:, None, None, None]
    assert torch.allclose(found[:12], signs * wanted, rtol=1e-2, atol=1e-2)
