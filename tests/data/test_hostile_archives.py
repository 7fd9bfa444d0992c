"""Archives and addresses that no publisher made: refused in words, with nothing left that looks whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from fasttrain.commands import prepare_command
from fasttrain.data import archives as archives_module
from fasttrain.data.archives import opened, plain_files
from fasttrain.data.imagenet import Expected, unpack_imagenet
from fasttrain.data.prepare import Sources, prepare
from fasttrain.errors import ConfigError, DataError, FasttrainError, MachineError
from tests.data.archive_samples import class_tar, jpeg, pack, write_archives

SMALL = Expected(num_train=9, num_val=7, num_classes=3, min_per_class=2, max_per_class=4)
PIXELS = np.zeros((1, 3072), dtype=np.uint8)
# The state of an array of 10^15 bytes, none of which is in the file.
HUGE = b"cnumpy\nndarray\n(I1000000000000000\ntR."


def refused(name: str, root: Path, source: object) -> FasttrainError:
    with pytest.raises(FasttrainError) as raised:
        prepare(name, root, sources=Sources(source=str(source)))
    left = [path for path in root.rglob("*") if path.name != archives_module.LOCK]
    assert left == []
    return raised.value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"N)R.", ""),
        (HUGE, ""),
        (b"(" * 100_000 + b"l.", ""),
        (pickle.dumps(None), "no list labels"),
        (pickle.dumps({b"labels": 3}), "no list labels"),
        (pickle.dumps({b"labels": [300], b"data": PIXELS}), "labels are not all 0 to 9"),
        (pickle.dumps({b"labels": ["a"], b"data": PIXELS}), "labels are not all 0 to 9"),
        (pickle.dumps({b"labels": [[1]], b"data": PIXELS}), "labels are not all 0 to 9"),
        (pickle.dumps({b"labels": [1, 2], b"data": PIXELS}, protocol=2), "(1, 3072) are not 3072 bytes"),
        (pickle.dumps({b"labels": [1], b"data": b"x"}), "its data are not 3072 bytes"),
    ],
)
def test_pickles_of_something_else(tmp_path: Path, content: bytes, reason: str) -> None:
    archive = pack(tmp_path / "py.tar.gz", {"x/data_batch_1": content})
    error = refused("cifar10", tmp_path / "set", archive)
    assert error.exit_code == 3
    assert "data_batch_1 is not a file of CIFAR-10's Python version" in str(error)
    assert [problem.fix for problem in error.problems] == ["download py.tar.gz again"]
    assert reason in str(error)


def test_a_pickle_larger_than_any_published_one_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasttrain.data.published.MAX_PYTHON_BYTES", 100)
    archive = pack(tmp_path / "py.tar.gz", {"x/data_batch_1": b"x" * 101})
    assert "it has 101 bytes" in str(refused("cifar10", tmp_path / "set", archive))


@pytest.mark.parametrize(
    "names",
    [
        ["x/train/a", "x/train/a/b.jpg"],
        ["x/train/a/b.jpg", "x/train/a"],
        ["x/train/a/" + "n" * 300],
        ["x/train/" + "n" * 300 + "/a.jpg"],
    ],
)
def test_names_that_cannot_be_files(tmp_path: Path, names: list[str]) -> None:
    archive = pack(tmp_path / "x.tgz", {name: jpeg(1) for name in names})
    error = refused("imagenette", tmp_path / "set", archive)
    assert error.exit_code == 3
    assert "x.tgz is cut off or damaged: it holds" in str(error)
    assert [problem.fix for problem in error.problems] == ["download x.tgz again"]


def test_numbers_in_headers_that_are_none(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    pack(archive, {"a" * 150: b"x"})

    class Broken:
        def __iter__(self) -> Broken:
            return self

        def __next__(self) -> None:
            raise ValueError("invalid literal for int()")

    with pytest.raises(DataError, match=r"x\.tar is cut off or damaged: a header that cannot be read"), opened(archive):
        list(plain_files(Broken(), "x.tar"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address",
    [
        "http://[bad/x.tgz",
        "http://localhost:port/x.tgz",
        "http://localhost:99999/x.tgz",
        f"http://{'a' * 70}.invalid/x.tgz",
        "http://a b/x.tgz",
        "http://localhost/..",
        "http://localhost/%00",
    ],
)
def test_no_addresses(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(ConfigError) as raised:
        prepare_command(["imagenette", "--root", str(tmp_path / "set"), "--from", address])
    assert f"--from {address}: " in str(raised.value)
    assert "--from FILE" in raised.value.problems[0].fix


@pytest.mark.parametrize("place", ["train", "val", "train/n01440764"])
@pytest.mark.parametrize("kind", ["file", "dead link"])
def test_something_else_where_a_folder_of_imagenet_goes(tmp_path: Path, place: str, kind: str) -> None:
    archives, path = write_archives(tmp_path / "archives"), tmp_path / "set" / place
    path.parent.mkdir(parents=True)
    if kind == "file":
        path.write_bytes(b"x")
    else:
        path.symlink_to("nowhere")
    words = "no folder" if kind == "file" else "a link to nothing"
    with pytest.raises(DataError, match=f"{path} is {words}, where a folder is made") as raised:
        unpack_imagenet(tmp_path / "set", archives, expected=SMALL, verify=False)
    assert raised.value.problems[0].fix == f"rm {path}"
    path.unlink()
    unpack_imagenet(tmp_path / "set", archives, expected=SMALL, verify=False)
    assert len(list((tmp_path / "set").rglob("*.JPEG"))) == 16


def test_what_the_system_refuses_has_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that only the listing or the last renaming shows to be closed."""
    archives, root = write_archives(tmp_path / "archives"), tmp_path / "set"

    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(MachineError, match="Permission denied"):
            unpack_imagenet(root, archives, expected=SMALL, verify=False)
    unpack_imagenet(root, archives, expected=SMALL, verify=False)
    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", lambda path: refuse(path, path))
        with pytest.raises(MachineError, match=r"listing .*train failed: Permission denied"):
            unpack_imagenet(root, archives, expected=SMALL, verify=False)


def test_a_class_archive_with_a_name_too_long(tmp_path: Path) -> None:
    archives = write_archives(tmp_path / "archives")
    long = pack(tmp_path / "x.tar", {"n" * 300 + ".JPEG": jpeg(1)}).read_bytes()
    others = {f"{wnid}.tar": class_tar(wnid, 2) for wnid in ("n02119789", "n03095699")}
    pack(archives / "ILSVRC2012_img_train.tar", {"n01440764.tar": long, **others})
    with pytest.raises(DataError, match=r"img_train\.tar is cut off or damaged: it holds 'nnn"):
        unpack_imagenet(tmp_path / "set", archives, expected=SMALL, verify=False)
