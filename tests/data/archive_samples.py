"""Small imitations of the published archives."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from fasttrain.data.devkit import GROUND_TRUTH
from fasttrain.data.imagenet import DEVKIT, TRAIN, VAL
from tests.data.test_val_labels import NUMBERS, WNIDS, meta_mat, val_name

# Training images of each class of the imitation.
COUNTS = {"n01440764": 3, "n02119789": 2, "n03095699": 4}


def jpeg(shade: int) -> bytes:
    """A small image that says which one it is."""
    content = io.BytesIO()
    Image.new("L", (8, 8), shade).save(content, "JPEG")
    return content.getvalue()


def pack(archive: Path, files: Mapping[str, bytes], *, others: Sequence[tarfile.TarInfo] = ()) -> Path:
    """Write a tar file, compressed if its name ends so; ``others`` have no content."""
    mode = "w:gz" if archive.name.endswith(("gz", "tgz")) else "w"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in others:
            tar.addfile(member)
    return archive


def tar_bytes(files: Mapping[str, bytes]) -> bytes:
    """A tar file in memory."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def class_tar(wnid: str, count: int) -> bytes:
    """The archive of one class."""
    return tar_bytes({f"{wnid}_{number}.JPEG": jpeg(10 * number) for number in range(count)})


def write_archives(folder: Path) -> Path:
    """ImageNet's three archives with three classes, nine training and seven validation images."""
    # Not sorted: neither is the published one's content said to be.
    pack(folder / TRAIN, {f"{wnid}.tar": class_tar(wnid, COUNTS[wnid]) for wnid in sorted(COUNTS, reverse=True)})
    pack(folder / VAL, {val_name(number): jpeg(100 + number) for number in range(7, 0, -1)})
    data = "ILSVRC2012_devkit_t12/data"
    truth = "".join(f"{number}\n" for number in NUMBERS).encode()
    files = {"ILSVRC2012_devkit_t12/readme.txt": b"x", f"{data}/meta.mat": meta_mat(WNIDS)}
    pack(folder / DEVKIT, {**files, f"{data}/{GROUND_TRUTH}": truth})
    return folder
