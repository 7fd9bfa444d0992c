"""ImageNet from its three archives: a folder a class, whatever is killed when; finished classes are not made again.

A class is unpacked beside its place under a name that starts with a dot, which the scanner passes over, and renamed
once all its files are there; so is the whole of ``val/``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fasttrain.data.archives import check_md5, check_space, failed, locked, opened, plain_files, write_member
from fasttrain.data.devkit import GROUND_TRUTH, META, WNID, by_file_number, is_class_number, named, read_meta, wnids_of
from fasttrain.data.layout import is_image
from fasttrain.data.progress import Progress
from fasttrain.errors import DataError, Problem

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
# image-net.org/download-images; torchvision's datasets/imagenet.py has the same.
MD5 = {
    TRAIN: "1d675b47d978889d74fa0da5fadfb00e",
    VAL: "29b22e2961454d5413ddabcf34fc5622",
    DEVKIT: "fa75699e90414af021442c21a62c3abf",
}
PARTIAL = ".{}.partial"


@dataclass(frozen=True)
class Expected:
    """What a complete set has: images, classes, and the fewest and most training images of a class."""

    num_train: int
    num_val: int
    num_classes: int
    min_per_class: int
    max_per_class: int


IMAGENET = Expected(1_281_167, 50_000, 1000, 732, 1300)  # arXiv:1409.0575, table 2


def unpack_imagenet(root: Path, archives: Path, *, expected: Expected, verify: bool) -> None:
    """Make ``root/train`` and ``root/val`` from the archives; what is whole already is left as it is.

    Args:
        root: Of the set.
        archives: Folder with the three archives; of a split that is there the archive may be gone.
        expected: What there must be in the end.
        verify: Compare the md5 sums of the archives first (minutes).

    Raises:
        DataError: An archive is missing, damaged, or not the published one; the images are not as many as expected.
        MachineError: The disk is too small; another process unpacks there.
    """
    for split in (root / "train", root / "val"):
        _refuse_other_than_folder(split)
    needed = {name: not split_is_whole(root / split, expected) for name, split in ((TRAIN, "train"), (VAL, "val"))}
    if not any(needed.values()):
        return
    names = [*(name for name in needed if needed[name]), DEVKIT]
    missing = [name for name in names if not (archives / name).is_file()]
    if missing:
        raise DataError(
            Problem(
                f"{archives} lacks {', '.join(missing)}",
                f"get them from https://image-net.org/download-images, or --archives DIR that holds {', '.join(names)}",
            )
        )
    wnids, classes = read_devkit(archives / DEVKIT, expected)
    if verify:
        for name in names:
            check_md5(archives / name, MD5[name])
    with locked(root):
        remaining = _remaining(archives / TRAIN, root / "train", set(wnids.values())) if needed[TRAIN] else {}
        val_bytes = (archives / VAL).stat().st_size if needed[VAL] else 0
        check_space(root, sum(remaining.values()) + val_bytes)
        if needed[TRAIN]:
            _unpack_train(archives / TRAIN, root / "train", remaining, expected)
        if needed[VAL]:
            _unpack_val(archives / VAL, root / "val", classes)
    problems = [problem for split in ("train", "val") if (problem := _not_whole(root / split, expected))]
    if problems and needed[TRAIN]:
        problems += _unlike_archive(archives / TRAIN, root / "train")
    if problems:
        raise DataError(problems)


def read_devkit(archive: Path, expected: Expected) -> tuple[dict[int, str], list[str]]:
    """Class number to class folder, and the class folder of validation image 1, 2, ...

    Raises:
        DataError: It is damaged, or has other numbers of classes and images than ``expected``.
    """
    contents: dict[str, bytes] = {}
    with opened(archive) as tar:
        for member, path in plain_files(tar, str(archive)):
            source = tar.extractfile(member) if path.name in (META, GROUND_TRUTH) else None
            if source is not None:
                contents[path.name] = source.read()
    again = f"download {archive.name} again"
    if lacking := [name for name in (META, GROUND_TRUTH) if name not in contents]:
        raise DataError(Problem(f"{archive} holds no {' and no '.join(lacking)}", again))
    wnids = read_meta(contents[META], f"{META} in {archive}")
    lines = contents[GROUND_TRUTH].decode("ascii", errors="replace").split()
    if len(wnids) != expected.num_classes or len(lines) != expected.num_val or not all(map(is_class_number, lines)):
        what = f"{len(wnids)} classes and the classes of {len(lines)} validation images"
        wanted = f"{expected.num_classes} and {expected.num_val}"
        raise DataError(Problem(f"{archive} holds {what}, expected {wanted}", again))
    return wnids, wnids_of([int(line) for line in lines], wnids, f"{GROUND_TRUTH} in {archive}")


def images_per_class(split: Path) -> dict[str, int]:
    """Images of each class folder of a split, by their endings; empty where there is no such folder."""
    if not split.is_dir():
        return {}
    try:
        folders = sorted(entry.name for entry in os.scandir(split) if entry.is_dir() and not entry.name.startswith("."))
        return {name: sum(map(is_image, os.listdir(split / name))) for name in folders}
    except OSError as error:
        raise failed(f"listing {split}", error) from error


def split_is_whole(split: Path, expected: Expected) -> bool:
    """Whether ``train/`` or ``val/`` is there with all images."""
    return _not_whole(split, expected) is None


def _not_whole(split: Path, expected: Expected) -> Problem | None:
    """What a split has too few or too many of."""
    counts = images_per_class(split)
    found = sum(counts.values())
    wanted = expected.num_train if split.name == "train" else expected.num_val
    odd = [
        f"{name} ({count})"
        for name, count in counts.items()
        if not expected.min_per_class <= count <= expected.max_per_class and split.name == "train"
    ]
    if (found, len(counts)) == (wanted, expected.num_classes) and not odd:
        return None
    what = f"{split} has {found:,} images in {len(counts):,} class folders, expected {wanted:,} in"
    what += f" {expected.num_classes:,}"
    if odd:
        what += (
            f"; classes with fewer than {expected.min_per_class} or more than {expected.max_per_class}: {named(odd)}"
        )
    fix = "remove the class folders that are not whole, then run it again"
    return Problem(what, fix if split.name == "train" else f"rm -r {shlex.quote(str(split))}, then run it again")


def _remaining(archive: Path, train: Path, wnids: set[str]) -> dict[str, int]:
    """Bytes of the tar files of the classes that have no folder yet, by class.

    Raises:
        DataError: The archive's classes are not the devkit's.
    """
    sizes = {}
    with opened(archive) as tar:
        for member, path in plain_files(tar, str(archive)):
            if not WNID.fullmatch(path.stem) or path.suffix != ".tar" or len(path.parts) > 1:
                what = f"{archive} holds {member.name!r}, expected a tar file for each class, such as n01440764.tar"
                raise DataError(Problem(what, f"download {archive.name} again"))
            sizes[path.stem] = member.size
    differing = sorted(wnids ^ sizes.keys())
    if differing:
        what = f"{archive} holds {len(sizes):,} classes, the devkit {len(wnids):,}; they differ in {named(differing)}"
        raise DataError(Problem(f"{what}: it is cut off or another archive", f"download {archive.name} again"))
    for wnid in sizes:
        _refuse_other_than_folder(train / wnid)
    return {wnid: size for wnid, size in sizes.items() if not (train / wnid).is_dir()}


def _unpack_train(archive: Path, train: Path, remaining: Mapping[str, int], expected: Expected) -> None:
    what = f"unpacking {archive.name}"
    with opened(archive) as outer, Progress(what, sum(remaining.values()), "bytes") as progress:
        train.mkdir(exist_ok=True)
        for member, path in plain_files(outer, str(archive)):
            if path.stem in remaining:
                _unpack_class(outer, member, train / path.stem, archive, expected)
                progress.advance(member.size)


def _unpack_class(
    outer: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, archive: Path, expected: Expected
) -> None:
    partial = _fresh(folder)
    source = outer.extractfile(member)
    assert source is not None  # of a plain file it never is
    num_images = 0
    with source, tarfile.open(fileobj=source, mode="r:") as inner:
        for image, path in plain_files(inner, f"{archive}, {member.name}"):
            if len(path.parts) > 1 or not is_image(path.name) or path.name.startswith("."):
                what = f"{archive}, {member.name} holds {image.name!r}, expected images alone"
                raise DataError(Problem(what, f"download {archive.name} again"))
            write_member(inner, image, partial / path.name)
            num_images += 1
    if not expected.min_per_class <= num_images <= expected.max_per_class:
        bounds = f"{expected.min_per_class} to {expected.max_per_class}"
        what = f"{archive}, {member.name} holds {num_images} images, expected {bounds}: it is cut off"
        raise DataError(Problem(what, f"download {archive.name} again"))
    partial.rename(folder)


def _unpack_val(archive: Path, val: Path, classes: list[str]) -> None:
    if val.exists():
        what = f"{val} is there, but not whole and not made by fasttrain prepare"
        raise DataError(Problem(what, f"rm -r {shlex.quote(str(val))}, then run it again"))
    with opened(archive) as tar, Progress(f"unpacking {archive.name}", archive.stat().st_size, "bytes") as progress:
        partial = _fresh(val)
        members = {path.name: member for member, path in plain_files(tar, str(archive))}
        label = dict(by_file_number(list(members), classes, "the devkit's ground truth"))
        for wnid in set(classes):
            (partial / wnid).mkdir()
        for name, member in members.items():
            write_member(tar, member, partial / label[name] / name)
            progress.advance(member.size)
        partial.rename(val)


def _unlike_archive(archive: Path, train: Path) -> list[Problem]:
    """The class folders that have not as many images as their archives: what another program left half-made."""
    counts, differing = images_per_class(train), []
    with opened(archive) as outer, Progress(f"comparing with {archive.name}", len(counts), "classes") as progress:
        for member, path in plain_files(outer, str(archive)):
            source = outer.extractfile(member)
            assert source is not None  # of a plain file it never is
            with source, tarfile.open(fileobj=source, mode="r:") as inner:
                published = sum(1 for _ in plain_files(inner, f"{archive}, {member.name}"))
            if counts.get(path.stem, 0) != published:
                differing.append(f"{path.stem} has {counts.get(path.stem, 0)} images, its archive {published}")
            progress.advance(1)
    folders = " ".join(shlex.quote(str(train / line.split()[0])) for line in differing[:5])
    return [Problem(f"{train}: {named(differing)}", f"rm -r {folders}, then run it again")] if differing else []


def _refuse_other_than_folder(path: Path) -> None:
    if os.path.lexists(path) and not path.is_dir():
        what = "a link to nothing" if path.is_symlink() and not path.exists() else "no folder"
        raise DataError(Problem(f"{path} is {what}, where a folder is made", f"rm {shlex.quote(str(path))}"))


def _fresh(folder: Path) -> Path:
    """An empty folder beside ``folder``, to be renamed to it; what a killed process left in it is gone."""
    partial = folder.with_name(PARTIAL.format(folder.name))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    return partial
