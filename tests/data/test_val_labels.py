"""``data.val_labels``: a flat validation folder gets its classes, by name and never by number."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from fasttrain.data.check import check
from fasttrain.data.devkit import GROUND_TRUTH, read_meta
from fasttrain.data.mat5 import MatError, read_mat5
from fasttrain.data.path import build_data_path
from fasttrain.data.scan import Scan, scan
from fasttrain.errors import DataError
from tests.data.samples import make_config, make_folder, make_plan
from tests.data.test_backends import BACKENDS

# As in the devkit: its numbers follow another order than the sorted folders.
WNIDS = {1: "n02119789", 2: "n01440764", 3: "n03095699"}
# Of the images 1 to 7.
NUMBERS = [3, 1, 2, 2, 1, 3, 1]


def element(kind: int, data: bytes) -> bytes:
    """A data element of a MAT-file; a short one in its small form."""
    if 0 < len(data) <= 4:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind: int, dims: tuple[int, int], parts: bytes, name: str = "") -> bytes:
    flags = element(6, struct.pack("<II", kind, 0))
    return element(14, flags + element(5, struct.pack("<ii", *dims)) + element(1, name.encode()) + parts)


def text_matrix(text: str) -> bytes:
    return matrix(4, (1, len(text)), element(4, text.encode("utf-16-le")))


def number_matrix(value: int) -> bytes:
    # MATLAB stores whole numbers in the smallest type that holds them, whatever the array's class.
    return matrix(6, (1, 1), element(2, bytes([value])) if value < 256 else element(4, struct.pack("<H", value)))


def meta_mat(wnids: dict[int, str], *, compressed: bool = True) -> bytes:
    """The devkit's meta.mat in small, with an inner node of the hierarchy at its end."""
    fields = ["ILSVRC2012_ID", "WNID", "words", "num_children", "children"]
    rows = [(number, wnid, 0) for number, wnid in wnids.items()] + [(len(wnids) + 1, "n00001740", 3)]
    body = element(5, struct.pack("<i", 32)) + element(1, b"".join(name.encode().ljust(32, b"\0") for name in fields))
    for number, wnid, num_children in rows:
        body += number_matrix(number) + text_matrix(wnid) + text_matrix("a word")
        body += number_matrix(num_children) + matrix(6, (0, 0), element(9, b""))
    content = matrix(2, (len(rows), 1), body, "synsets")
    if compressed:
        packed = zlib.compress(content)
        content = struct.pack("<II", 15, len(packed)) + packed
    return b"MATLAB 5.0 MAT-file, made by a test".ljust(124, b" ") + struct.pack("<H", 0x0100) + b"IM" + content


def val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08}.JPEG"


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Class folders in train/, seven images side by side in val/."""
    root = make_folder(tmp_path / "set", {"train": dict.fromkeys(WNIDS.values(), 2), ".": {"val": 7}})
    for number in range(7):
        (root / "val" / f"{number:03}.JPEG").rename(root / "val" / val_name(number + 1))
    (root / "val" / ".DS_Store").write_bytes(b"x")
    (root / "val" / "readme.txt").write_text("x")
    return root


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    folder = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    folder.mkdir(parents=True)
    (folder / "meta.mat").write_bytes(meta_mat(WNIDS))
    (folder / GROUND_TRUTH).write_text("".join(f"{number}\n" for number in NUMBERS))
    return folder / GROUND_TRUTH


def labelled(root: Path, file: Path) -> Scan:
    return scan(make_config(root=str(root), val_labels=str(file)))


def message(root: Path, file: Path) -> str:
    with pytest.raises(DataError) as raised:
        labelled(root, file)
    assert raised.value.exit_code == 3
    return " ".join(str(raised.value).split())


def classes_of(found: Scan) -> dict[str, str]:
    return {
        Path(path).name: found.classes[label]
        for path, label in zip(found.val.paths, found.val.labels.tolist(), strict=True)
    }


EXPECTED = {val_name(place): WNIDS[number] for place, number in enumerate(NUMBERS, 1)}
PAIRS = list(EXPECTED.items())


def write(path: Path, lines: Iterable[str], encoding: str = "utf-8") -> Path:
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def test_devkit_order_is_mapped_by_folder_name_and_not_by_number(flat: Path, devkit: Path) -> None:
    found = labelled(flat, devkit)
    assert found.classes == ("n01440764", "n02119789", "n03095699")
    assert classes_of(found) == EXPECTED
    # As a validation split with class folders: sorted by class, then by name.
    assert found.val.labels.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert [Path(path).name for path in found.val.paths[:2]] == [val_name(3), val_name(4)]
    assert "passed over 1 files" in found.notes[0]


def test_a_list_of_numbers_and_folders_stands_for_the_mat_file(flat: Path, devkit: Path) -> None:
    devkit.with_name("meta.mat").unlink()
    write(devkit.with_name("synsets.txt"), [f"{number} {wnid}" for number, wnid in WNIDS.items()])
    assert classes_of(labelled(flat, devkit)) == EXPECTED
    write(devkit.with_name("synsets.txt"), sorted(WNIDS.values()))
    assert "could be in the devkit's order or sorted" in message(flat, devkit)


def test_numbers_alone_are_refused(flat: Path, devkit: Path) -> None:
    devkit.with_name("meta.mat").unlink()
    text = message(flat, devkit)
    assert "not the places of the sorted class folders" in text
    assert "meta.mat" in text
    assert f"ILSVRC2012_devkit_t12/data/{GROUND_TRUTH}" in text


@pytest.mark.parametrize(
    "lines",
    [
        [f"{name} {wnid}" for name, wnid in EXPECTED.items()],
        [f"{name}\t{wnid}" for name, wnid in reversed(EXPECTED.items())],
        ["filename,class", *(f'"{name}", {wnid}' for name, wnid in EXPECTED.items()), ""],
        ["ImageId,PredictionString", *(f"{name[:-5]},{wnid} 1 2 30 40 {wnid} 5 6 7 8 " for name, wnid in PAIRS)],
    ],
    ids=["blanks", "tabs", "csv", "kaggle"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_lines_of_name_and_class(flat: Path, tmp_path: Path, lines: list[str], encoding: str) -> None:
    assert classes_of(labelled(flat, write(tmp_path / "labels.txt", lines, encoding))) == EXPECTED


def test_names_with_blanks_and_other_scripts(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", {"train": {"sea cow": 1, "图像": 1}, ".": {"val": 2}})
    (root / "val" / "000.JPEG").rename(root / "val" / "a photo.JPEG")
    found = labelled(root, write(tmp_path / "x.csv", ["a photo.JPEG,图像", "001.JPEG,sea cow"]))
    assert classes_of(found) == {"001.JPEG": "sea cow", "a photo.JPEG": "图像"}


def test_lines_and_files_that_do_not_fit_are_named_all_at_once(flat: Path, tmp_path: Path) -> None:
    names = list(EXPECTED)
    lines = [f"{name} n01440764" for name in names[1:5]]
    lines += [f"{names[1]} n03095699", f"{names[5]} n99999999", "gone.JPEG n03095699", f"{names[6]} n03095699"]
    text = message(flat, write(tmp_path / "labels.txt", lines))
    assert f"1 file names have more than one line: {names[1]}" in text
    assert f"1 files of val/ have no line: {names[0]}" in text
    assert "1 lines name files that are not in val/: gone.JPEG" in text
    assert "1 classes have no folder in train/: n99999999" in text
    assert "1 class folders of train/ have no validation image: n02119789" in text


def test_numbers_in_the_second_column_are_refused(flat: Path, tmp_path: Path) -> None:
    text = message(flat, write(tmp_path / "val.txt", [f"{name} {place}" for place, name in enumerate(EXPECTED)]))
    assert "do not say in which order classes were counted" in text


def test_folders_that_are_called_by_numbers_are_classes_like_others(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", {"train": {"0": 1, "10": 1}, ".": {"val": 2}})
    found = labelled(root, write(tmp_path / "val.txt", ["000.JPEG 10", "001.JPEG 0"]))
    assert classes_of(found) == {"000.JPEG": "10", "001.JPEG": "0"}


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        (lambda val: (val / val_name(4)).unlink(), "has 7 lines, but val/ lacks 1 files: number 4"),
        (lambda val: (val / val_name(7)).rename(val / val_name(9)), "none for 1 validation files: " + val_name(9)),
        (lambda val: shutil.copy(val / val_name(2), val / "b_0002.png"), "two validation files have the same number"),
        (lambda val: shutil.copy(val / val_name(2), val / "x.png"), "no number before their ending: x.png"),
    ],
)  # fmt: skip
def test_numbers_of_files_that_do_not_fit(flat: Path, devkit: Path, change: object, fragment: str) -> None:
    assert callable(change)
    change(flat / "val")
    assert fragment in message(flat, devkit)


@pytest.mark.parametrize(
    ("numbers", "fragment"),
    [([*NUMBERS, 1], "lacks 1 files: number 8"), ([4, *NUMBERS[1:]], "line 1: class 4, expected 1 to 3")],
)
def test_ground_truth_that_does_not_fit(flat: Path, devkit: Path, numbers: list[int], fragment: str) -> None:
    write(devkit, map(str, numbers))
    assert fragment in message(flat, devkit)


def test_files_that_say_nothing(flat: Path, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in message(flat, tmp_path / "gone.txt")
    assert "is empty" in message(flat, write(tmp_path / "empty.txt", [""]))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00x")
    assert "not text in UTF-8" in message(flat, tmp_path / "binary")
    assert "line 1 is 'x'" in message(flat, write(tmp_path / "one.txt", ["x"]))


def test_class_folders_need_no_labels(folder: Path, devkit: Path) -> None:
    assert "has class folders (ant, bee, cat)" in message(folder, devkit)


def test_a_flat_folder_without_labels_names_the_setting(flat: Path) -> None:
    with pytest.raises(DataError, match=r"holds 7 images side by side[^\n]*\n *fix: data.val_labels=FILE"):
        scan(make_config(root=str(flat)))


@pytest.mark.parametrize("settings", [{"kind": "cifar10"}, {"kind": "shapes"}, {"holdout_frac": 0.1}])
def test_labels_that_nothing_would_read_are_refused(settings: dict[str, object]) -> None:
    (problem,) = check(make_config(root="/x", val_labels="/y", **settings))
    assert problem.what.startswith("data.val_labels=/y, but ")
    assert problem.fix == "data.val_labels=null"


@pytest.mark.parametrize("settings", [{"kind": "cifar10", "root": "/x"}, {"backend": "synthetic"}])
def test_skipping_without_files_is_refused(settings: dict[str, object]) -> None:
    counts = {"num_train": 9, "num_val": 9, "num_classes": 3}
    (problem,) = check(make_config(on_bad_file="skip", **counts, **settings))
    assert problem.fix == "data.on_bad_file=fail"


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_carry_the_labels_of_the_file(flat: Path, devkit: Path, backend: str) -> None:
    found = labelled(flat, devkit)
    config = make_config([{"batch_size": 3}], root=str(flat), backend=backend, val_labels=str(devkit))
    plan = make_plan(config, found.num_train)
    path = build_data_path(config, found, plan, device=torch.device("cpu"), rank=0, world_size=1)
    try:
        (batch,) = path.val_batches(32)
        assert batch.labels.tolist() == [0, 0, 1, 1, 1, 2, 2]
    finally:
        path.close()


def test_the_mat_file_is_read_as_it_is_written() -> None:
    for compressed in (True, False):
        content = meta_mat({1: "n00000005", 2: "n00000003", 300: "n00000004"}, compressed=compressed)
        synsets = read_mat5(content)["synsets"]
        assert [synset["ILSVRC2012_ID"] for synset in synsets] == [[1], [2], [300], [4]]
        assert [synset["WNID"] for synset in synsets] == ["n00000005", "n00000003", "n00000004", "n00001740"]
        assert synsets[0]["children"] == []
        with pytest.raises(DataError, match="are not numbered from 1 on"):
            read_meta(content, "meta.mat")


def test_numbers_of_all_types_and_byte_orders() -> None:
    for kind, dtype in {2: "u1", 3: "i2", 5: "i4", 9: "f8", 13: "u8"}.items():
        for order, mark in (("<", b"IM"), (">", b"MI")):
            parts = [
                (6, np.array([6, 0], f"{order}u4").tobytes()),
                (5, np.array([1, 3], f"{order}i4").tobytes()),
                (1, b"numbers_"),
                (kind, np.array([1, 2, 77], order + dtype).tobytes()),
            ]
            body = b"".join(
                struct.pack(f"{order}II", number, len(data)) + data + bytes(-len(data) % 8) for number, data in parts
            )
            content = bytes(126) + mark + struct.pack(f"{order}II", 14, len(body)) + body
            assert read_mat5(content) == {"numbers_": [1, 2, 77]}


@pytest.mark.parametrize("length", [0, 100, 128 + 5, 128 + 60])
def test_a_mat_file_that_is_cut_off(length: int) -> None:
    for compressed in (True, False):
        content = meta_mat(WNIDS, compressed=compressed)[:length]
        with pytest.raises(DataError, match=r"meta\.mat"):
            read_meta(content, "meta.mat")
    with pytest.raises(MatError):
        read_mat5(b"HDF" + bytes(200))
