"""Named pipes, sockets and devices where a file is expected: refused in words and never opened, which could hang."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fasttrain.cli import main
from fasttrain.data.decode import find_bad_files
from fasttrain.data.image_file import image_size, open_image, why_bad
from fasttrain.data.prepare import Sources, prepare
from fasttrain.data.scan import scan
from fasttrain.errors import DataError
from fasttrain.regular_file import NotAFileError, require_regular_file, what_instead
from fasttrain.report.ddp_records import read_dots
from fasttrain.report.projection import read_rates
from tests.data.samples import make_config


def make_socket(path: Path) -> None:
    # The path of a socket has at most 107 bytes.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is a named pipe, not a file"),
    "socket": (make_socket, "it is a socket, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "link": (lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")), "it is a named pipe"),
}


@pytest.fixture
def root(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "set"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    return path


def test_what_is_a_file(tmp_path: Path, kind: str) -> None:
    make, words = KINDS[kind]
    make(tmp_path / "odd")
    assert (what_instead(tmp_path / "odd") or "").startswith(words)
    with pytest.raises(NotAFileError):
        require_regular_file(tmp_path / "odd")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "to_file").symlink_to("file")
    assert what_instead(tmp_path / "to_file") is None
    assert what_instead(tmp_path / "gone") == "no such file"
    assert what_instead(tmp_path) == "Is a directory"


def test_images_that_are_no_files(tmp_path: Path, kind: str) -> None:
    make, words = KINDS[kind]
    path = str(tmp_path / "x.jpg")
    make(Path(path))
    assert (why_bad(path) or "").startswith(words)
    for read in (open_image, image_size):
        with pytest.raises(DataError, match=f"x.jpg cannot be decoded: {words}"):
            read(path)
    assert [words in problem.what for problem in find_bad_files([path])] == [True]


def test_a_set_that_holds_one(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make, words = KINDS[kind]
    first = Path(scan(make_config(root=str(root))).train.paths[0])
    odd = [first.with_name("inner") / "odd.JPEG", root / "val" / first.parent.name / "odd.png"]
    odd[0].parent.mkdir()
    for path in odd:
        make(path)
    with pytest.raises(DataError) as raised:
        scan(make_config(root=str(root)))
    text = str(raised.value)
    assert all(f"{path}: {words}" in text for path in odd)
    assert "data.on_bad_file=skip" in text
    found = scan(make_config(root=str(root), on_bad_file="skip"))
    assert {path for path, _ in found.skipped} == set(map(str, odd))
    assert all(reason.startswith(words) for _, reason in found.skipped)
    assert (found.num_train, found.num_val) == (26, 11)


def test_label_files_that_are_none(root: Path, tmp_path: Path, pipe: Path) -> None:
    flat = tmp_path / "flat" / "val"
    flat.mkdir(parents=True)
    (flat.parent / "train").symlink_to(root / "train")
    shutil.copy(next((root / "val").rglob("*.*")), flat / "1.jpg")
    with pytest.raises(DataError, match=rf"data.val_labels={pipe} cannot be read: it is a named pipe, not a file"):
        scan(make_config(root=str(flat.parent), val_labels=str(pipe)))
    os.mkfifo(flat / "2.jpg")
    classes = sorted(path.name for path in (root / "train").iterdir())
    for name in classes:
        shutil.copy(flat / "1.jpg", flat / f"{name}.jpg")
    lines = [f"1.jpg,{classes[0]}\n", f"2.jpg,{classes[0]}\n", *(f"{name}.jpg,{name}\n" for name in classes)]
    (tmp_path / "labels").write_text("".join(lines))
    with pytest.raises(DataError, match=r"2\.jpg: it is a named pipe, not a file"):
        scan(make_config(root=str(flat.parent), val_labels=str(tmp_path / "labels")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x" * 200_000 + ",n01", "has 200,004 characters and is no line of CSV"),
        ('"' + "x" * 200_000 + ",", "no line of CSV"),
        ("7" * 200_000, "expected a file name and its class"),
    ],
)
def test_endless_lines_of_labels(root: Path, tmp_path: Path, text: str, words: str) -> None:
    flat = tmp_path / "flat" / "val"
    flat.mkdir(parents=True)
    (flat.parent / "train").symlink_to(root / "train")
    shutil.copy(next((root / "val").rglob("*.*")), flat / "1.jpg")
    (tmp_path / "labels").write_text(text + "\n")
    with pytest.raises(DataError, match=words) as raised:
        scan(make_config(root=str(flat.parent), val_labels=str(tmp_path / "labels")))
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("read", [read_rates, read_dots])
def test_figures_from_a_pipe(pipe: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match="it is a named pipe, not a file"):
        read(pipe)


def test_an_archive_from_a_pipe(pipe: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"--from {pipe}: it is a named pipe, not a file"):
        prepare("imagenette", tmp_path / "set", sources=Sources(source=str(pipe)))


def test_words_that_name_a_pipe(pipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipes = tmp_path / "conf" / "recipe"
    recipes.mkdir(parents=True)
    os.mkfifo(recipes / "mine.yaml")
    for words in (
        ["eval", str(pipe)],
        ["train", "recipe=quickstart", "dry_run=true", f"run_dir={tmp_path}/run", f"model.init_from={pipe}"],
        ["train", "recipe=mine", "--config-dir", str(recipes.parent)],
    ):
        assert main(words) == 2, words
        assert "it is a named pipe, not a file" in capsys.readouterr().err
