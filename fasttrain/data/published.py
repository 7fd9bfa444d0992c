"""Imagenette and CIFAR-10 from their published archives, a file or an address (``fasttrain prepare NAME --from``).

Everything is unpacked into a hidden folder inside of the set's and moved to its place once it is complete.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fasttrain.data.archives import (
    check_md5,
    check_space,
    failed,
    fetch,
    is_url,
    locked,
    opened,
    plain_files,
    write_member,
)
from fasttrain.data.cifar10 import NAMES_FILE, NUM_CLASSES, RECORD_BYTES, TRAIN_FILES, VAL_FILES
from fasttrain.data.layout import is_image
from fasttrain.errors import DataError, Problem
from fasttrain.regular_file import what_instead

# torchvision's datasets/imagenette.py and cifar.py; www.cs.toronto.edu/~kriz/cifar.html.
MD5 = {
    "imagenette2.tgz": "fe2fc210e6bb7c5664d602c3cd71e612",
    "imagenette2-320.tgz": "3df6f0d01a2c9592104656642f5e78a3",
    "imagenette2-160.tgz": "e793b78cc4c9e9a4ccc0c1155377a412",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
}
UNPACKING = ".unpacking"
# Files of CIFAR-10's Python version, and what they become.
PYTHON_FILES = {name.removesuffix(".bin"): name for name in (*TRAIN_FILES, *VAL_FILES)}
PYTHON_NAMES = "batches.meta"
# The largest of them has 31 MB; a compressed archive could claim any size, which would all be held in memory.
MAX_PYTHON_BYTES = 1 << 26
# Archives of photographs grow little when they are unpacked, CIFAR-10's by a tenth.
UNPACKED_OVER_ARCHIVE = 1.2


def unpack_published(name: str, source: str, root: Path, *, check: Callable[[Path], object]) -> None:
    """Lay out a set at ``root``.

    Args:
        name: ``imagenette`` or ``cifar10``.
        source: A file, or an address that is downloaded first.
        root: Of the set.
        check: Raises ``DataError`` where a folder does not hold the complete set; asked before it is moved.

    Raises:
        DataError: The archive is missing, damaged, not the published one, or incomplete; something else of the set's
            name lies at ``root``.
        MachineError: No network, no room, or another process unpacks there.
    """
    if not is_url(source) and (wrong := what_instead(Path(source).expanduser())):
        raise DataError(Problem(f"--from {source}: {wrong}", f"fasttrain prepare {name}    # says where it is"))
    with locked(root):
        archive = fetch(source, root) if is_url(source) else Path(source).expanduser()
        if archive.name in MD5:
            check_md5(archive, MD5[archive.name])
        check_space(root, int(archive.stat().st_size * UNPACKED_OVER_ARCHIVE))
        unpacking = root / UNPACKING
        shutil.rmtree(unpacking, ignore_errors=True)
        try:
            unpacking.mkdir()
            (_unpack_cifar10 if name == "cifar10" else _unpack_folders)(archive, unpacking)
            _check_unpacked(unpacking, archive, check)
            entries = sorted(unpacking.iterdir())
            _refuse_other_files([(entry, root / entry.name) for entry in entries], archive)
            for entry in entries:
                # What a process that was killed here has moved already is as whole as this.
                if not (root / entry.name).exists():
                    entry.rename(root / entry.name)
        except OSError as error:
            raise failed(f"unpacking to {root}", error) from error
        finally:
            shutil.rmtree(unpacking, ignore_errors=True)
        if is_url(source):
            archive.unlink()


def _check_unpacked(unpacking: Path, archive: Path, check: Callable[[Path], object]) -> None:
    """See that the set is complete, and say of the archive what is wrong with its content."""
    try:
        check(unpacking)
    except DataError as error:
        places = (f"data.root={unpacking.absolute()}", str(unpacking.absolute()), str(unpacking))
        fix = f"download {archive.name} again, or --from the published archive"
        problems = []
        for problem in error.problems:
            what = problem.what
            for place in places:
                what = what.replace(place, str(archive))
            problems.append(Problem(what, fix))
        raise DataError(problems) from error


def _refuse_other_files(pairs: Sequence[tuple[Path, Path]], archive: Path) -> None:
    """Refuse what lies where something unpacked goes and is not the same: to keep it would make a set of two.

    Args:
        pairs: What was unpacked, and its place.
        archive: Named in the error.

    Raises:
        DataError: All such places.
    """
    problems = []
    for unpacked, place in pairs:
        if not os.path.lexists(place):
            continue
        wanted, found = _sizes_below(unpacked), _sizes_below(place)
        lacking = sum(found.get(name) != size for name, size in wanted.items())
        more = sum(is_image(name) for name in found.keys() - wanted.keys())
        if lacking or more:
            what = f"{place} is there and not what {archive.name} holds: {lacking:,} of its files are missing or other"
            what += f" ones, and {more:,} are images that it does not have"
            problems.append(Problem(what, f"rm -r {shlex.quote(str(place))}, or move it away, then run it again"))
    if problems:
        raise DataError(problems)


def _sizes_below(place: Path) -> dict[str, int]:
    """Bytes of a file, or of each one below a folder by its path there; names that start with a dot are left out."""
    if not place.is_dir():
        return {"": place.stat().st_size} if place.is_file() else {}

    def refused(error: OSError) -> None:
        raise error  # what cannot be listed is not what is missing

    files = (
        Path(folder, name) for folder, _, names in os.walk(place, onerror=refused) for name in names if name[0] != "."
    )
    return {str(file.relative_to(place)): file.lstat().st_size for file in files}


def _unpack_folders(archive: Path, folder: Path) -> None:
    """The files of ``train/`` and ``val/``, which lie in one folder of the archive."""
    with opened(archive) as tar:
        for member, path in plain_files(tar, str(archive)):
            inside = path.parts[1:]
            if len(inside) < 2 or inside[0] not in ("train", "val") or path.name.startswith("."):
                continue
            write_member(tar, member, folder.joinpath(*inside))


def _unpack_cifar10(archive: Path, folder: Path) -> None:
    """The binary files, from the binary or from the Python version."""
    with opened(archive) as tar:
        for member, path in plain_files(tar, str(archive)):
            if path.name in (*TRAIN_FILES, *VAL_FILES, NAMES_FILE):
                write_member(tar, member, folder / path.name)
            elif path.name in (*PYTHON_FILES, PYTHON_NAMES):
                source = tar.extractfile(member)
                assert source is not None  # of a plain file it never is
                try:
                    if member.size > MAX_PYTHON_BYTES:
                        raise ValueError(f"it has {member.size:,} bytes")
                    content = _as_binary(_unpickle(source.read()), path.name)
                except ValueError as error:
                    what = f"{archive}, {member.name} is not a file of CIFAR-10's Python version: {error}"
                    raise DataError(Problem(what, f"download {archive.name} again")) from error
                (folder / (NAMES_FILE if path.name == PYTHON_NAMES else PYTHON_FILES[path.name])).write_bytes(content)


def _as_binary(content: Any, name: str) -> bytes:
    """The file of the binary version that one of the Python version becomes.

    Raises:
        ValueError: The content is another one.
    """
    key = b"label_names" if name == PYTHON_NAMES else b"labels"
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise ValueError(f"it has no list {key.decode()}")
    if name == PYTHON_NAMES:
        if not all(isinstance(label, bytes) and label.isascii() for label in found):
            raise ValueError("its label_names are no text in ASCII")
        return b"".join(label + b"\n" for label in found)
    if not all(isinstance(label, int) and 0 <= label < NUM_CLASSES for label in found):
        raise ValueError(f"its labels are not all 0 to {NUM_CLASSES - 1}")
    pixels = content.get(b"data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(found), RECORD_BYTES - 1):
        shape = f" of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else ""
        raise ValueError(f"its data{shape} are not {RECORD_BYTES - 1} bytes for each label")
    return np.concatenate([np.array(found, dtype=np.uint8)[:, None], pixels], axis=1).tobytes()


class _PlainUnpickler(pickle.Unpickler):
    """Makes arrays, numbers, text, lists and dicts, and calls nothing else that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}:
            return super().find_class(module, name)
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return importlib.import_module("numpy._core.multiarray")._reconstruct
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unpickle(content: bytes) -> Any:
    """What a file of the Python version holds.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # bytes that are no pickle make its machine raise anything, a MemoryError too
        raise ValueError(str(error) or type(error).__name__) from error
