"""Hardware, versions, commit and command as the report words them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fasttrain.report import machine
from fasttrain.report.machine import command_line, commit, describe_machine, driver_version, hardware, versions
from tests.report.conftest import make_config


@pytest.mark.parametrize(
    ("argv", "environment", "command"),
    [
        (["/v/bin/python", "train.py", "seed=1"], {}, "python train.py seed=1"),
        (["/v/bin/python3", "/v/bin/fasttrain", "train", "seed=1"], {}, "fasttrain train seed=1"),
        (["python", "-m", "fasttrain", "train"], {}, "python -m fasttrain train"),
        (["python", "train.py", "data.root=/a b"], {}, "python train.py 'data.root=/a b'"),
        (
            ["/v/bin/python", "-u", "train.py", "seed=1"],
            {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"},
            "torchrun --nnodes=2 --nproc-per-node=8 train.py seed=1",
        ),
        (
            ["/v/bin/python", "-u", "-m", "fasttrain", "train", "-u"],
            {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"},
            "torchrun --nnodes=1 --nproc-per-node=2 -m fasttrain train -u",
        ),
    ],
)
def test_the_command_is_given_as_typed(argv: list[str], environment: dict[str, str], command: str) -> None:
    assert command_line(argv, environment) == command


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null"]
    done = subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_says_when_code_differs(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "fasttrain").mkdir()
    (tmp_path / "fasttrain" / "__init__.py").write_text("")
    assert commit(tmp_path) is None  # a folder inside somebody's repository that is not of it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "note.txt").write_text("no code")
    assert commit(tmp_path) == head
    (tmp_path / "fasttrain" / "new.py").write_text("")
    assert commit(tmp_path) == f"{head}-dirty"
    assert commit(tmp_path / "absent") is None


def test_a_cpu_is_named_with_its_cores() -> None:
    text = hardware("cpu", world_size=1, num_nodes=1)
    assert "-core CPU (" in text
    assert hardware("cpu", world_size=2, num_nodes=1) == f"2 processes on {text}"
    assert hardware("cpu", world_size=4, num_nodes=2) == f"4 processes on {text} (2 machines)"


def test_versions_are_text_and_name_what_shapes_a_result() -> None:
    found = versions("cpu")
    assert {"python", "fasttrain", "torch", "timm", "pytorch-lightning", "hydra"} <= set(found)
    assert all(isinstance(version, str) and version for version in found.values())


def test_code_counts_as_changed_where_git_cannot_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"ls-files": "fasttrain/__init__.py\n", "rev-parse": "0123abc\n", "status": None}
    monkeypatch.setattr(machine, "_ask", lambda command: answers[command[3]])
    assert commit(tmp_path) == "0123abc-dirty"
    answers["status"] = ""
    assert commit(tmp_path) == "0123abc"


def test_a_gpu_is_named_by_its_driver_and_the_config_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    assert hardware("cuda", world_size=16, num_nodes=2) == "16 x NVIDIA H200 (2 machines)"
    config = make_config(report={"hardware": "a rented machine"})
    described = describe_machine(config, device_type="cpu", world_size=4)
    assert (described.hardware, described.num_devices) == ("a rented machine", 4)
    assert described.command


def test_the_driver_is_named_by_the_kernel_or_by_its_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(machine, "_ask", lambda command: asked.append(command[0]) or "570.1\n570.1\n")
    version = tmp_path / "version"
    assert driver_version(version) == "570.1"
    version.write_text("580.159.04\n")
    assert driver_version(version) == "580.159.04"
    assert asked == ["nvidia-smi"]
    monkeypatch.setattr(machine, "_ask", lambda command: None)
    assert driver_version(tmp_path / "absent") == ""
