"""The folder of a saved cache: refused before training if nothing can be saved there, and kept clean."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasttrain.data import cache_folder, cache_registry
from fasttrain.data.cache_folder import LEFT_OVER_AFTER_S, check_writable, lock, remove_left_over, temporary_name
from fasttrain.errors import MachineError
from tests.data.test_cache import epoch_images, start

NAME = ".0123456789ab_dali_160px_shard_0_of_8.squares"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    cache_registry.take(None)


@pytest.mark.parametrize(
    ("cache_dir", "why"),
    [
        ("/dev/null", "it is a file, expected a folder"),
        ("/dev/null/x", "it cannot be written to: Not a directory"),
        ("{tmp}/file", "it is a file, expected a folder"),
        ("{tmp}/" + "x" * 300, "it cannot be written to: File name too long"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_before_training(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, cache_dir: str, why: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError) as caught:
        start(folder, cache_dir=cache_dir.format(tmp=tmp_path))
    (problem,) = caught.value.problems
    assert problem.what.endswith(why)
    assert "data.cache_dir=null" in problem.fix
    assert not caplog.records  # nothing is announced that will not be


def refuse(**_: object) -> None:
    raise OSError(30, "Read-only file system")


def test_a_folder_that_can_be_read_alone_serves_once_it_is_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, (path,), _ = start(folder, cache_dir=str(tmp_path))
    epoch_images(plan, [path], 0)
    path.close()
    cache_registry.take(None)
    monkeypatch.setattr(cache_folder.tempfile, "TemporaryFile", refuse)
    plan, (path,), (backend,) = start(folder, cache_dir=str(tmp_path))
    epoch_images(plan, [path], 0)
    assert backend.decoded == []
    path.close()
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(MachineError, match=r"cannot be written to: Read-only file system"):
        start(folder, cache_dir=str(tmp_path))


def test_a_folder_is_made_and_nothing_stays_in_it(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    file = tmp_path / NAME[1:]
    file.write_bytes(b"whole")
    code = (
        "import os, sys; from pathlib import Path; from fasttrain.data.cache_folder import lock, temporary_name\n"
        "opened = temporary_name(Path(sys.argv[1])).open('wb'); lock(opened); print('held', flush=True); input()"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "held\n"
    temporary = tmp_path / f"{NAME}.{platform.node()}.{writer.pid}"
    try:
        remove_left_over(tmp_path)
        assert temporary.exists()
    finally:
        writer.kill()
        writer.communicate()
    remove_left_over(tmp_path)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("host", "age_s", "stays"), [("other", 60, True), ("other", LEFT_OVER_AFTER_S + 60, False)])
def test_what_another_host_writes_is_left_over_after_a_day(tmp_path: Path, host: str, age_s: int, stays: bool) -> None:
    file = tmp_path / f"{NAME}.{host}.1"
    file.write_bytes(b"")
    os.utime(file, (time.time() - age_s,) * 2)
    remove_left_over(tmp_path)
    assert file.exists() == stays


def test_without_locks_a_file_is_left_over_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    file = temporary_name(tmp_path / NAME[1:])
    file.write_bytes(b"")
    monkeypatch.setattr(cache_folder.fcntl, "flock", no_locks)
    with file.open("r+b") as opened:
        assert lock(opened) is None
    remove_left_over(tmp_path)
    assert file.exists()
    os.utime(file, (1, 1))
    remove_left_over(tmp_path)
    assert not file.exists()


def test_a_run_removes_what_was_left(folder: Path, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.{platform.node()}.1").write_bytes(b"")
    start(folder, cache_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
