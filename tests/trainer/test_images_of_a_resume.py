"""A resumed run sees the images that it saw before; a failed compilation is explained."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from torch._inductor.exc import InductorError

from fasttrain.errors import MachineError
from fasttrain.trainer.compiled import explain_failed_compilation

Train = Callable[..., int]


def test_other_images_of_the_same_number_are_another_run(
    train_tiny: Train, tiny_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "images"
    shutil.copytree(tiny_images, root)
    run = [f"run_dir={tmp_path / 'run'}", f"data.root={root}"]
    assert train_tiny(*run, "trainer.steps_per_stage=1") == 0
    (tmp_path / "run" / "checkpoints" / "previous.ckpt").replace(tmp_path / "run" / "checkpoints" / "last.ckpt")
    shutil.copytree(root, tmp_path / "moved")
    moved = [run[0], f"data.root={tmp_path / 'moved'}"]
    image = next((root / "train").glob("*/*"))
    image.rename(image.with_name("renamed" + image.suffix))
    assert train_tiny(*run, "trainer.steps_per_stage=1", "resume=auto") == 3
    assert "has other images than when" in capsys.readouterr().err
    # The same images elsewhere are the same run.
    assert train_tiny(*moved, "trainer.steps_per_stage=1", "resume=auto") == 0


def test_a_failed_compilation_names_the_folder_to_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache/inductor")
    with pytest.raises(MachineError) as caught, explain_failed_compilation():
        raise InductorError(ImportError("kernel.so: file too short"), None)
    assert "file too short" in str(caught.value)
    assert "rm -r /cache/inductor" in str(caught.value)
