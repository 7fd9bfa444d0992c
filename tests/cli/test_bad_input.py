"""Bad input ends with words that help and the documented exit code, before anything is trained."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.cli import main
from fasttrain.run.exits import exit_code_of

ROOT = Path(__file__).resolve().parents[2]
Train = Callable[..., int]


@pytest.mark.parametrize(
    ("arguments", "code", "fragments"),
    [
        (["train"], 2, ["recipe", "quickstart"]),
        (["train", "recipe=quikstart"], 2, ["quikstart", "quickstart"]),
        (["train", "recipe=quickstart", "optimizer.lrr=1"], 2, ["optimizer.lrr", "optimizer.lr"]),
        (["train", "recipe=quickstart", "optimizer.lr=abc"], 2, ["optimizer.lr=abc", "number"]),
        (["train", "recipe=quickstart", "optimizer.lr=-1"], 2, ["optimizer.lr=-1", "above 0"]),
        (["train", "recipe=quickstart", "optimizer.lr=null"], 2, ["optimizer.lr"]),
        (["train", "recipe=quickstart", "stages=[]"], 2, ["stages"]),
        (["train", "recipe=quickstart", "stages.0.epochs=0"], 2, ["epochs", "1"]),
        (["trian"], 2, ["trian", "train"]),
    ],
)
def test_words_that_cannot_be_run(
    arguments: list[str], code: int, fragments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert all(fragment in error for fragment in fragments), error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("override", "code", "fragments"),
    [
        ("model.num_classes=12", 2, ["data.num_classes=16", "model.num_classes=12"]),
        ("model.name=resnet5O", 2, ["resnet5O", "resnet50"]),
        ("model.name=vit_tiny_patch16_224", 2, ["px", "32"]),
        ("stages.0.batch_size=128", 2, ["stages.0.batch_size=128", "64 images"]),
        ("target.metric=top7", 2, ["target.metric", "top1", "top5"]),
        ("resume=auto", 2, ["run_dir"]),
        ("trainer.precision=fp16", 2, ["trainer.precision=fp16", "GPU"]),
        ("trainer.num_nodes=2", 2, ["trainer.num_nodes=2", "torch.distributed.run"]),
    ],
)
def test_settings_that_do_not_fit(
    train_tiny: Train,
    override: str,
    code: int,
    fragments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [] if override == "resume=auto" else [f"run_dir={tmp_path / 'run'}"]
    assert train_tiny(override, *given) == code
    error = capsys.readouterr().err
    assert all(fragment in error for fragment in fragments), error
    assert not list(tmp_path.rglob("*.ckpt"))


def test_more_devices_than_the_machine_has(
    train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny("trainer.accelerator=gpu", "trainer.devices=8", f"run_dir={tmp_path}/run") == 4
    error = capsys.readouterr().err
    assert "no GPU" in error or "trainer.devices=8" in error


def test_a_top5_target_needs_six_classes(tmp_path: Path, tiny_images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "images"
    for split in ("train", "val"):
        for folder in sorted((tiny_images / split).iterdir())[:3]:
            shutil.copytree(folder, root / split / folder.name)
    arguments = ["train", "recipe=quickstart", "data=imagefolder", f"data.root={root}", "data.num_train=null"]
    arguments += ["data.num_val=null", "data.num_classes=null", "dry_run=true", "stages.0.batch_size=4"]
    arguments += ["stages.1.batch_size=4", "stages.2.batch_size=4", "target.metric=top5", f"run_dir={tmp_path / 'run'}"]
    assert main(arguments) == 2
    assert "target.metric=top1" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(train_tiny: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert train_tiny(f"run_dir={tmp_path / 'file' / 'run'}") == 4
    assert "cannot be written" in capsys.readouterr().err


def test_plan_and_errors_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from fasttrain.cli import main\n"
        f"assert main(['train', 'recipe=quickstart', 'dry_run=true', 'run_dir={tmp_path}/run']) == 0\n"
        "assert main(['train', 'recipe=quickstart', 'optimizer.lrr=1']) == 2\n"
        "assert main(['train', '--help']) == 0\n"
        "heavy = {'torch', 'pytorch_lightning', 'timm', 'torchvision', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "plan.json").is_file()
    assert not (tmp_path / "data").exists()
    # So a name that timm does not know cannot be seen.
    assert "the names of network and optimizer are looked up in timm and torch when it is trained" in done.stdout


def test_memory_of_the_machine_that_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (MemoryError(), MemoryError("Unable to allocate 3 TiB")):
        assert exit_code_of(error, debug=False) == 4
        words = capsys.readouterr().err
        assert "environment error: the machine's memory is full" in words
        assert str(error) in words
        assert "no message" not in words
        assert "data.workers" in words


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_what_the_system_refuses_is_no_fault_of_the_program(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(OSError(number, os.strerror(number), "/some/file"), debug=False) == 4
    words = capsys.readouterr().err
    assert words.startswith(f"environment error: /some/file: {os.strerror(number)}\n    fix: ")
    # Without a file's name it is not said of which one, so that the place in the program is.
    assert exit_code_of(OSError(number, os.strerror(number)), debug=False) == 1


def test_a_file_that_the_program_expected_is_its_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(FileNotFoundError(errno.ENOENT, "No such file or directory", "/some/file"), debug=False) == 1
    assert "internal error: FileNotFoundError" in capsys.readouterr().err
