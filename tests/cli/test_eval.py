"""``fasttrain eval``: the accuracy that training noted, and words for what cannot be validated."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fasttrain.cli import main
from fasttrain.data.shape_drawing import CLASSES

Train = Callable[..., int]


@pytest.fixture
def best(train_tiny: Train, tmp_path: Path) -> Path:
    """The best checkpoint of a run of two stages."""
    assert train_tiny(f"run_dir={tmp_path / 'run'}", "seed=3") == 0
    return tmp_path / "run/checkpoints/best.ckpt"


def change(source: Path, target: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    content = torch.load(source, weights_only=True)
    edit(content)
    torch.save(content, target)
    return target


def test_a_checkpoint_is_validated_as_when_it_was_written(
    best: Path, tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_stage = change(best, tmp_path / "early.ckpt", lambda c: c["fasttrain"].update(epochs=[[32, 16, 4]]))
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").open()))
    accuracy = max(float(row["top1"]) for row in rows)
    out = tmp_path / "eval.json"
    assert main(["eval", str(best), "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    epoch = len(torch.load(best, weights_only=True)["fasttrain"]["epochs"])
    assert figures["top1"] == pytest.approx(accuracy, abs=0.01)
    assert figures["px"] == (32 if epoch <= 2 else 48)
    assert main(["eval", str(first_stage)]) == 0
    assert "at 32 px (stage 0's); N=32" in capsys.readouterr().out
    # A folder with other numbers of images of the same classes; fewer than one batch of them to train on.
    other = tmp_path / "other"
    shutil.copytree(tiny_images, other)
    for folder in (other / "train").iterdir():
        for image in sorted(folder.iterdir())[1:]:
            image.unlink()
    assert main(["eval", str(best), "--root", str(other), "--px", "40"]) == 0
    assert "at 40 px; N=32" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU does")
def test_a_checkpoint_of_a_gpu_is_validated_on_a_cpu(best: Path, tmp_path: Path) -> None:
    def on_gpu(content: dict[str, Any]) -> None:
        text = content["fasttrain"]["config"]
        for ours, theirs in (("accelerator: cpu", "accelerator: gpu"), ("precision: fp32", "precision: fp16")):
            assert ours in text
            text = text.replace(ours, theirs)
        content["fasttrain"]["config"] = text.replace("backend: torchvision", "backend: dali")

    assert main(["eval", str(change(best, tmp_path / "gpu.ckpt", on_gpu))]) == 0


def test_what_cannot_be_validated_is_said(
    best: Path, tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer, renamed, text = tmp_path / "fewer", tmp_path / "renamed", tmp_path / "text.ckpt"
    text.write_text("no checkpoint")
    for root in (fewer, renamed):
        shutil.copytree(tiny_images, root)
    for split in ("train", "val"):
        shutil.rmtree(fewer / split / CLASSES[0])
        (renamed / split / sorted(CLASSES)[3]).rename(renamed / split / "aaa")
    broken, piped = tmp_path / "broken", tmp_path / "piped"
    for root in (broken, piped):
        shutil.copytree(tiny_images, root)
    broken_file = next((broken / "val").rglob("*.*"))
    broken_file.write_bytes(b"")
    os.mkfifo(piped / "val" / CLASSES[0] / "pipe.png")
    no_config = change(best, tmp_path / "no_config.ckpt", lambda c: c["fasttrain"].pop("config"))
    no_names = change(best, tmp_path / "no_names.ckpt", lambda c: c["fasttrain"].pop("classes", None))
    named = change(best, tmp_path / "named.ckpt", lambda c: c["fasttrain"].update(classes=sorted(CLASSES)))
    run = best.parents[1]
    cases: list[tuple[list[str], int, list[str]]] = [
        ([str(tmp_path / "absent.ckpt")], 2, [f"{tmp_path}/absent.ckpt: no such file", "RUN/checkpoints"]),
        ([str(run)], 2, [f"{run}: a folder", f"fasttrain eval {best}"]),
        ([str(text)], 2, [f"{text}: cannot be read", "RUN/checkpoints/best.ckpt"]),
        ([str(no_config)], 2, [str(no_config), "RUN/checkpoints/best.ckpt"]),
        ([str(best), "--json", str(tmp_path)], 4, [f"--json {tmp_path}"]),
        ([str(best), "--root", str(tmp_path / "absent")], 3, [f"--root {tmp_path}/absent: no such folder"]),
        ([str(no_names), "--root", str(fewer)], 3, [f"{fewer} has 15 classes, {no_names} was trained on 16"]),
        ([str(named), "--root", str(fewer)], 3, [f"{fewer} has 15 classes, {named} was trained on 16"]),
        (
            [str(best), "--root", str(broken)],
            3,
            [f"{broken_file} cannot be decoded: the file is empty", "fix: get the", "or --on-bad-file skip"],
        ),
        (
            [str(best), "--root", str(piped)],
            3,
            ["pipe.png: it is a named pipe", "fix: remove it, or --on-bad-file skip\n"],
        ),
        ([str(named), "--root", str(renamed)], 3, ["class 0 is", "aaa here", "class folders"]),
    ]
    for arguments, code, fragments in cases:
        assert main(["eval", *arguments]) == code, arguments
        error = capsys.readouterr().err
        assert all(fragment in error for fragment in fragments), error
        assert not any(word in error for word in ("resume=", "data.root", "internal", "state_dict", "on_bad_file")), (
            error
        )


def test_bad_validation_files_are_left_out_counted_and_listed(
    best: Path, tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, whole, out = tmp_path / "set", tmp_path / "whole", tmp_path / "eval.json"
    for copy in (root, whole):
        shutil.copytree(tiny_images, copy)
    bad = [sorted((root / "val" / name).iterdir())[0] for name in CLASSES[:2]]
    for path in bad:
        path.write_bytes(b"<html>")
        (whole / path.relative_to(root)).unlink()
    # No training image is read, so that a bad one does not matter.
    sorted((root / "train" / CLASSES[0]).iterdir())[0].write_bytes(b"")
    assert main(["eval", str(best), "--root", str(whole), "--json", str(out)]) == 0
    without = json.loads(out.read_text())
    assert (without["num_val"], without["skipped_files"], without["skipped"]) == (30, 0, {})
    capsys.readouterr()
    for _ in range(2):  # the second time by what is known of the files
        assert main(["eval", str(best), "--root", str(root), "--on-bad-file", "skip", "--json", str(out)]) == 0
        line, left_out, *named = capsys.readouterr().out.splitlines()
        assert "N=30;" in line
        assert left_out == "left out 2 of 32 validation images, which cannot be decoded:"
        assert named == [f"  {path}: not an image, it starts with b'<html>'" for path in sorted(bad)]
        figures = json.loads(out.read_text())
        assert (figures["num_val"], figures["skipped_files"]) == (30, 2)
        assert set(figures["skipped"]) == set(map(str, bad))
        assert (figures["top1"], figures["top5"]) == (without["top1"], without["top5"])
    assert main(["eval", str(best), "--root", str(whole), "--on-bad-file", "skip"]) == 0
    assert capsys.readouterr().out.endswith("\nall 30 validation images can be decoded\n")


def test_without_the_flag_a_bad_file_is_an_error_unless_its_run_skipped_such(
    best: Path, tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "set"
    shutil.copytree(tiny_images, root)
    bad = sorted((root / "val" / CLASSES[0]).iterdir())[0]
    bad.write_bytes(b"<html>")

    def skipping(content: dict[str, Any]) -> None:
        assert "on_bad_file: fail" in content["fasttrain"]["config"]
        text = content["fasttrain"]["config"].replace("on_bad_file: fail", "on_bad_file: skip")
        content["fasttrain"]["config"] = text

    skipped = change(best, tmp_path / "skipped.ckpt", skipping)
    for arguments in ([str(best)], [str(skipped), "--on-bad-file", "fail"]):
        assert main(["eval", *arguments, "--root", str(root)]) == 3
        error = capsys.readouterr().err
        assert f"{bad} cannot be decoded: not an image" in error
        assert "or --on-bad-file skip to leave such files out" in error
        assert "data.on_bad_file" not in error
    assert main(["eval", str(skipped), "--root", str(root)]) == 0
    assert "N=31;" in (said := capsys.readouterr().out)
    assert f"left out 1 of 32 validation images, which cannot be decoded:\n  {bad}: " in said
    for path in (root / "val" / CLASSES[0]).iterdir():
        path.write_bytes(b"")
    assert main(["eval", str(best), "--root", str(root), "--on-bad-file", "skip"]) == 3
    assert "--on-bad-file skip would leave no validation image in 1 classes" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["eval", str(best), "--root", str(root), "--on-bad-file", "skip"]) == 4
    assert "--on-bad-file skip keeps what it finds in" in capsys.readouterr().err


def test_data_without_files_has_none_to_skip(best: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def synthetic(content: dict[str, Any]) -> None:
        text = content["fasttrain"]["config"].replace("backend: torchvision", "backend: synthetic")
        content["fasttrain"]["config"] = text

    checkpoint = change(best, tmp_path / "synthetic.ckpt", synthetic)
    assert main(["eval", str(checkpoint), "--on-bad-file", "skip"]) == 2
    assert "--on-bad-file skip: synthetic data decodes no image files" in capsys.readouterr().err


@pytest.mark.parametrize("px", ["0", "-5", "7", "1025", "5000"])
def test_px_is_bounded(px: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path / "any.ckpt"), "--px", px]) == 2
    assert f"--px {px}: expected 8 to 1024 pixels" in capsys.readouterr().err
