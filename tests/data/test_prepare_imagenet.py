"""``fasttrain prepare imagenet`` on a small imitation of the three archives."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fasttrain.commands import prepare_command
from fasttrain.data import archives as archives_module
from fasttrain.data import imagenet
from fasttrain.data import prepare as prepare_module
from fasttrain.data.imagenet import DEVKIT, TRAIN, VAL, Expected
from fasttrain.data.known_sets import DATA_SETS
from fasttrain.data.prepare import Sources, prepare
from fasttrain.errors import ConfigError, DataError, MachineError
from tests.data.archive_samples import COUNTS, class_tar, jpeg, pack, write_archives
from tests.data.test_val_labels import EXPECTED as VAL_CLASSES
from tests.data.test_val_labels import WNIDS, val_name

SMALL = Expected(num_train=9, num_val=7, num_classes=3, min_per_class=2, max_per_class=4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete ImageNet is the imitation."""
    data_set = dataclasses.replace(DATA_SETS["imagenet"], num_train=9, num_val=7, num_classes=3)
    monkeypatch.setitem(DATA_SETS, "imagenet", data_set)
    monkeypatch.setattr(prepare_module, "IMAGENET", SMALL)


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    return write_archives(tmp_path / "down loads")


def unpack(root: Path, archives: Path, *, verify: bool = False) -> str:
    return prepare("imagenet", root, sources=Sources(archives=archives, verify=verify))


def message(root: Path, archives: Path, error: type[DataError | MachineError] = DataError) -> str:
    with pytest.raises(error) as raised:
        unpack(root, archives)
    assert "data.root" not in str(raised.value)
    return " ".join(str(raised.value).split())


def contents(root: Path) -> dict[str, bytes]:
    """Path to bytes of all files but the lock."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != archives_module.LOCK)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def whole() -> dict[str, bytes]:
    train = {
        f"train/{wnid}/{wnid}_{number}.JPEG": jpeg(10 * number)
        for wnid, count in COUNTS.items()
        for number in range(count)
    }
    return train | {f"val/{wnid}/{name}": jpeg(100 + int(name[-7:-5])) for name, wnid in VAL_CLASSES.items()}


def test_archives_become_class_folders_by_the_devkits_names(tmp_path: Path, archives: Path) -> None:
    text = unpack(tmp_path / "image net", archives)
    assert "9 training and 7 validation images of 3 classes" in text
    assert "as published" in text
    assert contents(tmp_path / "image net") == whole()


def test_archives_in_the_sets_own_folder_and_the_command(
    tmp_path: Path, archives: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_command(["imagenet", "--root", str(archives)]) == 0
    assert "as published" in capsys.readouterr().out
    assert prepare_command(["imagenet", "--root", str(archives), "--check"]) == 0
    assert prepare_command(["imagenet", "--root", str(tmp_path / "other"), "--archives", str(archives)]) == 0
    assert contents(tmp_path / "other") == whole()


class Killed(BaseException):
    """Ends a process at the wrong moment."""


@pytest.mark.parametrize("moment", range(16))
def test_killed_at_any_file_and_run_again(
    tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    written: list[Path] = []
    real = archives_module.write_member

    def write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
        if len(written) == moment:
            target.write_bytes(b"half")
            raise Killed
        written.append(target)
        real(tar, member, target)

    monkeypatch.setattr(imagenet, "write_member", write)
    root = tmp_path / "set"
    with pytest.raises(Killed):
        unpack(root, archives)
    visible = {name: data for name, data in contents(root).items() if "/." not in f"/{name}"}
    assert visible.items() <= whole().items()
    classes = {Path(name).parts[1] for name in visible if name.startswith("train/")}
    assert all(sum(f"train/{wnid}/" in name for name in visible) == COUNTS[wnid] for wnid in classes)
    written.clear()
    moment = -1
    unpack(root, archives)
    assert contents(root) == whole()
    again = {path.name.split("_")[0] for path in written if ".val." not in str(path)}
    assert again == COUNTS.keys() - classes
    written.clear()
    unpack(root, archives)
    assert written == []


def test_what_is_whole_needs_no_archive(tmp_path: Path, archives: Path) -> None:
    root = tmp_path / "set"
    unpack(root, archives)
    (archives / TRAIN).unlink()
    shutil.rmtree(root / "val")
    unpack(root, archives)
    assert contents(root) == whole()
    shutil.rmtree(root / "train" / "n01440764")
    assert f"{archives} lacks {TRAIN}" in message(root, archives)


@pytest.mark.parametrize("name", [TRAIN, VAL, DEVKIT])
def test_a_missing_archive_is_named_before_anything_is_written(tmp_path: Path, archives: Path, name: str) -> None:
    (archives / name).unlink()
    assert f"lacks {name}" in message(tmp_path / "set", archives)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("frac", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("name", [TRAIN, VAL, DEVKIT])
def test_an_archive_that_is_cut_off_leaves_nothing_that_looks_whole(
    tmp_path: Path, archives: Path, name: str, frac: float
) -> None:
    path, root = archives / name, tmp_path / "set"
    content = path.read_bytes()
    # A tar file ends in kilobytes of zeros.
    last = len(content.rstrip(b"\0")) if name != DEVKIT else len(content)
    path.write_bytes(content[: int(last * frac)])
    message(root, archives)
    assert not (root / ("train" if name == DEVKIT else "val")).exists()
    if (root / "train").exists():
        assert all(len(list(folder.iterdir())) == COUNTS.get(folder.name) for folder in (root / "train").glob("n*"))
    path.write_bytes(content)
    unpack(root, archives)
    assert contents(root) == whole()


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize("name", ["/etc/x.JPEG", "../x.JPEG", "a/../../x.JPEG", "n01440764/../../../x.JPEG"])
@pytest.mark.parametrize("which", ["class", "train", "val", "devkit"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, archives: Path, name: str, which: str) -> None:
    tars = {f"{wnid}.tar": class_tar(wnid, count) for wnid, count in COUNTS.items()}
    if which == "class":
        tars["n01440764.tar"] = pack(tmp_path / "x.tar", {name: jpeg(1), "y.JPEG": jpeg(2)}).read_bytes()
        pack(archives / TRAIN, tars)
    elif which == "train":
        pack(archives / TRAIN, {**tars, name: b"x"})
    else:
        pack(archives / (VAL if which == "val" else DEVKIT), {name: jpeg(1)})
    assert "a path that leads out of its folder" in message(tmp_path / "set", archives)
    assert not list(tmp_path.rglob("x.JPEG"))
    assert not Path("/etc/x.JPEG").exists()


@pytest.mark.parametrize("archive", [TRAIN, VAL, DEVKIT])
def test_links_are_refused(tmp_path: Path, archives: Path, archive: str) -> None:
    pack(archives / archive, {}, others=[link("n01440764.tar", "/etc/passwd")])
    assert "holds 'n01440764.tar', a link" in message(tmp_path / "set", archives)


def test_another_archive_under_the_name(tmp_path: Path, archives: Path) -> None:
    pack(archives / TRAIN, {f"{wnid}.tar": class_tar(wnid, 2) for wnid in ("n01440764", "n00000001")})
    text = message(tmp_path / "set", archives)
    assert "holds 2 classes, the devkit 3; they differ in n00000001, n02119789, n03095699" in text
    pack(archives / TRAIN, {"train/a.JPEG": jpeg(1)})
    assert "expected a tar file for each class" in message(tmp_path / "set", archives)


def test_too_few_images_of_a_class(tmp_path: Path, archives: Path) -> None:
    pack(archives / TRAIN, {f"{wnid}.tar": class_tar(wnid, 1) for wnid in COUNTS})
    assert "holds 1 images, expected 2 to 4" in message(tmp_path / "set", archives)
    assert list((tmp_path / "set" / "train").glob("n*")) == []


def test_validation_images_that_the_devkit_does_not_fit(tmp_path: Path, archives: Path) -> None:
    pack(archives / VAL, {val_name(number): jpeg(number) for number in (1, 2, 3, 4, 5, 6, 8)})
    text = message(tmp_path / "set", archives)
    assert "val/ lacks 1 files: number 7" in text
    assert f"none for 1 validation files: {val_name(8)}" in text
    assert not (tmp_path / "set" / "val").exists()


def test_a_devkit_of_another_size(tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATA_SETS, "imagenet", dataclasses.replace(DATA_SETS["imagenet"], num_val=8))
    assert "3 classes and the classes of 7 validation images, expected 3 and 8" in message(tmp_path / "set", archives)
    pack(archives / DEVKIT, {"ILSVRC2012_devkit_t12/data/meta.mat": b"x"})
    assert "holds no ILSVRC2012_validation_ground_truth.txt" in message(tmp_path / "set", archives)


def test_half_a_class_that_somebody_else_unpacked_is_found(tmp_path: Path, archives: Path) -> None:
    root = tmp_path / "set"
    unpack(root, archives)
    (root / "train" / "n03095699" / "n03095699_0.JPEG").unlink()
    text = message(root, archives)
    assert "train has 8 images in 3 class folders, expected 9 in 3" in text
    assert "n03095699 has 3 images, its archive 4" in text
    (root / "val" / VAL_CLASSES[val_name(1)] / val_name(1)).unlink()
    assert f"rm -r {root}/val" in message(root, archives)


def test_md5_sums_are_compared_on_request(tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {name: hashlib.md5((archives / name).read_bytes()).hexdigest() for name in (TRAIN, VAL, DEVKIT)}
    with pytest.raises(DataError, match=f"{TRAIN} has the md5 sum {sums[TRAIN]}, published is 1d675b47"):
        unpack(tmp_path / "set", archives, verify=True)
    for name, digest in sums.items():
        monkeypatch.setitem(imagenet.MD5, name, digest)
    assert "as published" in unpack(tmp_path / "set", archives, verify=True)


def test_a_disk_that_is_too_small(tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert "MB more, and 0.0 MB are free" in message(tmp_path / "set", archives, MachineError)
    assert not (tmp_path / "set" / "train").exists()


def hold(root: Path, ready: Any, done: Any) -> None:
    with archives_module.locked(root):
        ready.set()
        done.wait(30)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Another process that unpacks into the same folder, until it is told to end."""
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "set", ready, done))
    other.start()
    assert ready.wait(30)
    yield lambda: (done.set(), other.join())[0]
    done.set()
    other.join()


def test_two_at_once_do_not_mix(tmp_path: Path, archives: Path, held: Callable[[], None]) -> None:
    assert "another fasttrain prepare is at work there" in message(tmp_path / "set", archives, MachineError)
    held()
    assert "as published" in unpack(tmp_path / "set", archives)


def test_without_archives_it_says_where_they_are(tmp_path: Path) -> None:
    text = prepare("imagenet", tmp_path / "set")
    assert "https://image-net.org/download-images" in text
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("name", "root", "check", "sources", "fragment"),
    [
        ("imagenet", "x", False, Sources(source="x.tgz"), "it takes --archives and --verify"),
        ("cifar10", "x", False, Sources(archives=Path("x")), "it takes --from"),
        ("shapes", "x", False, Sources(verify=True), "it is made, not unpacked"),
        ("imagenet", "x", True, Sources(verify=True), "--check only looks"),
        ("imagenet", None, False, Sources(archives=Path("x")), "into which folder?"),
    ],
)
def test_flags_that_do_not_go_together(
    name: str, root: str | None, check: bool, sources: Sources, fragment: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        prepare(name, None if root is None else Path(root), check=check, sources=sources)
    assert fragment in str(raised.value)


def test_check_says_what_is_wrong_and_what_is_fine(tmp_path: Path, archives: Path) -> None:
    root = tmp_path / "set"
    unpack(root, archives)
    for number in (0, 1):
        (root / "train" / "n01440764" / f"n01440764_{number}.JPEG").unlink()
    with pytest.raises(DataError) as raised:
        prepare("imagenet", root, check=True)
    text = str(raised.value)
    assert "7 training and 7 validation images of 3 classes; a complete imagenet has 9 training" in text
    assert "(as published: val, classes)" in text
    assert "train/n01440764 1" in text
    assert os.path.isdir(root / "train" / "n01440764")


def test_the_published_numbers() -> None:
    assert Expected(1_281_167, 50_000, 1000, 732, 1300) == imagenet.IMAGENET
    assert WNIDS[1] > WNIDS[2]  # the imitation's devkit has another order than the folders, as the real one has
