"""Whole runs on sets that are laid out or counted as real ones are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fasttrain.cli import main
from tests.conftest import NUM_VAL

Train = Callable[..., int]
ANY_COUNT = ["data.num_train=null", "data.num_val=null", "data.num_classes=null"]


@pytest.fixture
def flat(tiny_images: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The tiny images with all validation images side by side, and a file that says their classes."""
    root, lines = tmp_path / "flat", []
    shutil.copytree(tiny_images / "train", root / "train")
    (root / "val").mkdir()
    for number, image in enumerate(sorted((tiny_images / "val").rglob("*.jpg"), key=lambda path: path.name), 1):
        name = f"ILSVRC2012_val_{number:08}.JPEG"
        shutil.copy(image, root / "val" / name)
        lines.append(f"{name} {image.parent.name}\n")
    (tmp_path / "labels.txt").write_text("".join(lines))
    return root, tmp_path / "labels.txt"


def test_a_flat_validation_folder_is_never_trained_with(
    flat: tuple[Path, Path], train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(f"data.root={flat[0]}", f"run_dir={tmp_path / 'run'}") == 3
    error = capsys.readouterr().err
    assert "val has no class folders" in error
    assert "data.val_labels=FILE" in error
    assert not (tmp_path / "run").exists()


def test_with_labels_it_gives_the_accuracy_of_class_folders(
    flat: tuple[Path, Path],
    tiny_images: Path,
    train_tiny: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, labels = flat
    short = ["trainer.steps_per_stage=2", "data.val_crop_frac=1.0"]
    assert train_tiny(*short, f"run_dir={tmp_path / 'folders'}") == 0
    given = [f"data.root={root}", f"data.val_labels={labels}"]
    assert train_tiny(*short, *given, f"run_dir={tmp_path / 'labels'}") == 0
    results = [json.loads((tmp_path / name / "report/result.json").read_text()) for name in ("folders", "labels")]
    assert results[0]["num_val"] == results[1]["num_val"] == NUM_VAL
    assert results[0]["top5"] == results[1]["top5"]
    checkpoint = tmp_path / "labels" / "checkpoints" / "last.ckpt"
    assert main(["eval", str(checkpoint)]) == 0
    # Elsewhere the same images lie in class folders, which need no file.
    assert main(["eval", str(checkpoint), "--root", str(tiny_images)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "top1" in line and str(checkpoint) in line]
    assert len(lines) == 2
    assert lines[0] == lines[1]


def test_three_classes_and_one_image_too_many_for_whole_batches(
    tiny_images: Path, train_tiny: Train, tmp_path: Path
) -> None:
    root = tmp_path / "three"
    for split in ("train", "val"):
        for folder in sorted((tiny_images / split).iterdir())[:3]:
            shutil.copytree(folder, root / split / folder.name)
    extra = sorted((root / "train").rglob("*.jpg"))[0]
    shutil.copy(extra, extra.with_name("extra.jpg"))
    num_train = len(list((root / "train").rglob("*.jpg")))
    assert num_train % 4 == 1
    stages = "stages=[{epochs: 1, px: 32, min_area: 0.35, batch_size: 4, val_px: 32}]"
    target = ["target.metric=top1", f"run_dir={tmp_path / 'run'}"]
    assert train_tiny(f"data.root={root}", *ANY_COUNT, stages, *target, "schedule.warmup_epochs=0") == 0
    result = json.loads((tmp_path / "run/report/result.json").read_text())
    assert result["top5"] is None
    assert 0 <= result["top1"] <= 100
    header = torch.load(tmp_path / "run/checkpoints/last.ckpt")["fasttrain"]
    assert header["step"] == num_train // 4 + 1


def test_a_network_for_fewer_classes_than_the_data_has_is_refused(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["data.num_classes=null", "model.num_classes=10", f"run_dir={tmp_path / 'run'}"]
    assert train_tiny(*settings) == 3
    assert "data has 16 classes, model.num_classes=10" in capsys.readouterr().err


def test_the_checkpoint_says_how_its_images_are_prepared(train_tiny: Train, tmp_path: Path) -> None:
    given = ["data.val_crop_frac=0.9", "data.mean=[0.1,0.2,0.3]", "trainer.steps_per_stage=1"]
    assert train_tiny(*given, f"run_dir={tmp_path / 'run'}") == 0
    for name in ("last", "best"):
        header = torch.load(tmp_path / f"run/checkpoints/{name}.ckpt")["fasttrain"]
        assert header["preprocessing"] == {
            "px": 48,
            "rectangular": False,
            "resize_px": 53,
            "crop_frac": 0.9,
            "interpolation": "bilinear",
            "antialias": True,
            "exif_orientation": "ignored",
            "colour": "RGB",
            "mean": [0.1, 0.2, 0.3],
            "std": [0.229, 0.224, 0.225],
        }
