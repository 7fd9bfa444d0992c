"""``fasttrain prepare imagenette|cifar10 --from FILE_OR_URL`` on small archives of the published layouts."""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import os
import pickle
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fasttrain.cli import main
from fasttrain.data import published
from fasttrain.data.cifar10 import TRAIN_FILES, VAL_FILES, read_cifar10
from fasttrain.data.known_sets import DATA_SETS
from fasttrain.data.prepare import Sources, prepare
from fasttrain.errors import ConfigError, DataError, MachineError
from tests.data.archive_samples import jpeg, pack
from tests.data.samples import write_cifar10

NAMES = [f"animal {number}" for number in range(10)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, counts in {"imagenette": (3, 2, 2), "cifar10": (100, 20, 10)}.items():
        fields = dict(zip(("num_train", "num_val", "num_classes"), counts, strict=True))
        small = dataclasses.replace(DATA_SETS[name], **fields)
        monkeypatch.setitem(DATA_SETS, name, small)


def imagenette(archive: Path) -> Path:
    inside = ["train/n01/1.JPEG", "train/n01/2.JPEG", "train/n02/3.JPEG", "val/n01/4.JPEG", "val/n02/5.JPEG"]
    files = {f"imagenette2-320/{name}": jpeg(10 * place) for place, name in enumerate(inside)}
    extra = {"imagenette2-320/.DS_Store": b"x", "imagenette2-320/noisy_imagenette.csv": b"x"}
    return pack(archive, {**files, **extra, "imagenette2-320/train/n01/._1.JPEG": b"x"})


def cifar10_python(archive: Path, binary: Path, *, protocol: int = 2) -> Path:
    """The Python version of the files in ``binary``."""
    files = {}
    for name in (*TRAIN_FILES, *VAL_FILES):
        records = np.fromfile(binary / name, dtype=np.uint8).reshape(-1, 3073)
        batch = {b"labels": records[:, 0].tolist(), b"data": records[:, 1:], b"batch_label": b"batch"}
        files[f"cifar-10-batches-py/{name.removesuffix('.bin')}"] = pickle.dumps(batch, protocol=protocol)
    meta = {b"label_names": [name.encode() for name in NAMES], b"num_vis": 3072}
    files["cifar-10-batches-py/batches.meta"] = pickle.dumps(meta, protocol=protocol)
    return pack(archive, {**files, "cifar-10-batches-py/readme.html": b"x"})


def cifar10_binary(archive: Path, binary: Path) -> Path:
    files = {f"cifar-10-batches-bin/{name}": (binary / name).read_bytes() for name in (*TRAIN_FILES, *VAL_FILES)}
    return pack(archive, {**files, "cifar-10-batches-bin/batches.meta.txt": "\n".join([*NAMES, ""]).encode()})


def unpack(name: str, root: Path, source: Path | str) -> str:
    return prepare(name, root, sources=Sources(source=str(source)))


def names_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_imagenette(tmp_path: Path) -> None:
    archive, root = imagenette(tmp_path / "small.tgz"), tmp_path / "a set"
    assert "3 training and 2 validation images of 2 classes" in unpack("imagenette", root, archive)
    expected = ["train/n01/1.JPEG", "train/n01/2.JPEG", "train/n02/3.JPEG", "val/n01/4.JPEG", "val/n02/5.JPEG"]
    assert names_below(root) == [".prepare.lock", *expected]
    assert (root / "val/n02/5.JPEG").read_bytes() == jpeg(40)
    archive.unlink()
    assert "as published" in unpack("imagenette", root, archive)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_both_versions_of_cifar10_become_the_same_files(tmp_path: Path, protocol: int) -> None:
    binary = write_cifar10(tmp_path / "binary")
    unpack("cifar10", tmp_path / "one", cifar10_binary(tmp_path / "bin.tar.gz", binary))
    unpack("cifar10", tmp_path / "two", cifar10_python(tmp_path / "py.tar.gz", binary, protocol=protocol))
    assert names_below(tmp_path / "one") == names_below(tmp_path / "two")
    for name in (*TRAIN_FILES, *VAL_FILES):
        expected = (binary / name).read_bytes()
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() == expected
    assert read_cifar10(str(tmp_path / "two")).classes == tuple(NAMES)


class Evil:
    """Would run what it names when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return eval, ("1 + 1",)


def test_a_python_version_that_wants_to_run_something(tmp_path: Path) -> None:
    archive = pack(tmp_path / "py.tar.gz", {"cifar-10-batches-py/data_batch_1": pickle.dumps(Evil())})
    with pytest.raises(
        DataError, match=r"data_batch_1 is not a file of CIFAR-10's Python version: it asks for \w+.eval"
    ):
        unpack("cifar10", tmp_path / "set", archive)
    for content in (b"", b"garbage", pickle.dumps({b"labels": [1]}), pickle.dumps([1])):
        pack(archive, {"cifar-10-batches-py/data_batch_1": content})
        with pytest.raises(DataError, match="is not a file of CIFAR-10's Python version"):
            unpack("cifar10", tmp_path / "set", archive)


def test_a_known_name_has_a_known_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = imagenette(tmp_path / "imagenette2-320.tgz")
    with pytest.raises(DataError, match="published is 3df6f0d01a2c9592104656642f5e78a3"):
        unpack("imagenette", tmp_path / "set", archive)
    monkeypatch.setitem(published.MD5, archive.name, hashlib.md5(archive.read_bytes()).hexdigest())
    assert "as published" in unpack("imagenette", tmp_path / "set", archive)


@pytest.mark.parametrize("frac", [0.0, 0.5, 0.9])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, frac: float) -> None:
    archive = imagenette(tmp_path / "small.tgz")
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * frac)])
    with pytest.raises(DataError, match="is cut off or damaged"):
        unpack("imagenette", tmp_path / "set", archive)
    assert names_below(tmp_path / "set") == [".prepare.lock"]


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    archive = pack(tmp_path / "x.tgz", {"x/train/a/1.JPEG": jpeg(1), "x/val/a/2.JPEG": jpeg(2)})
    with pytest.raises(DataError, match="1 training and 1 validation images of 1 classes; a complete imagenette has 3"):
        unpack("imagenette", tmp_path / "set", archive)
    with pytest.raises(DataError, match=r"is empty; expected the files ROOT/data_batch_1\.bin"):
        unpack("cifar10", tmp_path / "set", archive)
    assert names_below(tmp_path / "set") == [".prepare.lock"]
    hostile = tarfile.TarInfo("imagenette2/train/n01/x.JPEG")
    hostile.type, hostile.linkname = tarfile.LNKTYPE, "/etc/passwd"
    with pytest.raises(DataError, match="a link: not the published archive"):
        unpack("imagenette", tmp_path / "set", pack(tmp_path / "y.tgz", {}, others=[hostile]))


def test_killed_between_two_moves(tmp_path: Path) -> None:
    archive, root = imagenette(tmp_path / "small.tgz"), tmp_path / "set"
    unpack("imagenette", root, archive)
    (root / "val").rename(root / ".unpacking")
    assert "as published" in unpack("imagenette", root, archive)
    assert len(names_below(root)) == 6


def damage_file(root: Path) -> None:
    (root / "train/n01/1.JPEG").write_bytes(b"x")


def add_image(root: Path) -> None:
    (root / "train/n01/more.JPEG").write_bytes(jpeg(1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: (root / "train/n01/1.JPEG").unlink(), "1 of its files are missing"),
        (lambda root: shutil.rmtree(root / "train/n02"), "1 of its files are missing"),
        (lambda root: (damage_file(root), shutil.rmtree(root / "val")), "1 of its files are missing"),
        (lambda root: (add_image(root), shutil.rmtree(root / "val")), "1 are images that it does not have"),
    ],
)
def test_a_set_of_other_files_is_not_mixed_with_the_archives(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    archive, root = imagenette(tmp_path / "small.tgz"), tmp_path / "set"
    unpack("imagenette", root, archive)
    change(root)
    before = names_below(root)
    with pytest.raises(DataError) as raised:
        unpack("imagenette", root, archive)
    assert words in str(raised.value)
    assert f"fix: rm -r {root / 'train'}, or move it away" in str(raised.value)
    assert names_below(root) == before
    shutil.rmtree(root / "train")
    assert "as published" in unpack("imagenette", root, archive)


def test_a_folder_that_cannot_be_listed_is_not_one_that_lacks_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, root = imagenette(tmp_path / "small.tgz"), tmp_path / "set"
    unpack("imagenette", root, archive)
    closed, scandir = str(root / "train" / "n01"), os.scandir

    def refuse(path: str) -> Any:
        if str(path) == closed or str(path) == str(Path(closed).absolute()):
            raise PermissionError(errno.EACCES, "Permission denied", closed)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(MachineError, match=f"Permission denied .{closed}.\n *fix: see that you may use it"):
        unpack("imagenette", root, archive)


def test_what_an_archive_lacks_is_said_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = pack(tmp_path / "x.tgz", {"x/train/a/1.JPEG": jpeg(1), "x/val/a/2.JPEG": jpeg(2)})
    monkeypatch.chdir(tmp_path)
    for name in ("imagenette", "cifar10"):
        for root in (tmp_path / "set", Path("set")):
            with pytest.raises(DataError) as raised:
                unpack(name, root, archive)
            assert f"data error: {archive}" in str(raised.value)
            assert "fix: download x.tgz again" in str(raised.value)
            assert ".unpacking" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>"])
def test_no_archive_is_said_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tgz").write_bytes(content)
    with pytest.raises(DataError) as raised:
        unpack("imagenette", tmp_path / "set", tmp_path / "x.tgz")
    (problem,) = raised.value.problems
    assert problem.what.endswith("and starts with b'<html>404</html>'" if content else "it is empty")


def test_a_missing_archive_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        unpack("imagenette", tmp_path / "set", tmp_path / "gone.tgz")
    assert not (tmp_path / "set").exists()


def test_a_file_in_the_folders_place_and_no_path_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = imagenette(tmp_path / "small.tgz")
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(MachineError, match="fix: a file lies where a folder goes"):
            unpack("imagenette", root, archive)
    for flag in ("--root", "--archives"):
        with pytest.raises(SystemExit) as ended:
            main(["prepare", "imagenet", flag, ""])
        assert ended.value.code == 2
        assert f"{flag}: expected a path" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fasttrain.data.archives.fcntl.flock", no_locks)
    assert "as published" in unpack("imagenette", tmp_path / "set", imagenette(tmp_path / "small.tgz"))


class Handler(BaseHTTPRequestHandler):
    """Serves one file, a missing one and one that breaks off."""

    def __init__(self, content: bytes, *rest: object) -> None:
        self.content = content
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path.startswith("/gone"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: len(self.content) // 2] if self.path.startswith("/half") else self.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    content = imagenette(tmp_path / "served.tgz").read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, content))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address(tmp_path: Path, server: str) -> None:
    root = tmp_path / "set"
    with pytest.raises(DataError, match=f"{server}/gone/x.tgz: 404"):
        unpack("imagenette", root, f"{server}/gone/x.tgz")
    with pytest.raises(MachineError, match="broke off after"):
        unpack("imagenette", root, f"{server}/half/x.tgz")
    assert names_below(root) == [".prepare.lock"]
    assert "as published" in unpack("imagenette", root, f"{server}/x.tgz?version=1")
    assert len(names_below(root)) == 6


def test_a_download_writes_over_nothing(tmp_path: Path, server: str) -> None:
    mine = tmp_path / "set" / "x.tgz"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(DataError, match=f"{mine} is there, .*\\n *fix: --from {mine} to unpack it"):
        unpack("imagenette", mine.parent, f"{server}/x.tgz")
    assert mine.read_text() == "mine"


def test_addresses_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(MachineError, match=r"cannot be reached: [^\n]*\n *fix: download it where there is a network"):
        unpack("imagenette", tmp_path / "set", "http://127.0.0.1:9/x.tgz")
    for address in ("file:///etc/passwd", "http://127.0.0.1/"):
        with pytest.raises(ConfigError, match="expected http"):
            unpack("imagenette", tmp_path / "set", address)
    with pytest.raises(DataError, match="no such file"):
        unpack("imagenette", tmp_path / "set", tmp_path / "gone.tgz")
