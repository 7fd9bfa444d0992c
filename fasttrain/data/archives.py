"""Tar files of data sets: fetched, checked and unpacked so that nothing half-written is mistaken for whole.

Nothing that an archive says about places, links, owners or permissions is followed: whoever unpacks one names the
files, and only plain files are written.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import lzma
import os
import re
import shlex
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, InvalidURL
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from fasttrain.data.progress import Progress
from fasttrain.errors import REFUSALS, ConfigError, DataError, MachineError, Problem
from fasttrain.regular_file import what_instead

CHUNK_BYTES = 1 << 20
# Files end in a block of the file system; of 100 kB images that is a few per cent.
SPACE_MARGIN = 1.03
NETWORK_TIMEOUT_S = 60
# What a new folder says to a name too long, and to a file and a folder of one name.
NAME_ERRORS = {errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR}
# Characters of a member's name that an error shows.
MAX_SHOWN = 120
LOCK = ".prepare.lock"


@contextmanager
def opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """A tar file, compressed or not.

    Raises:
        DataError: It is missing, no tar file, cut off or damaged; while it is read, too.
        MachineError: The disk is full, or what is written cannot be.
    """
    again = f"download {archive.name} again"
    if wrong := what_instead(archive):
        raise DataError(Problem(f"{archive}: {wrong}", again))
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(Problem(f"{archive} is cut off or damaged: {_why(error, archive)}", again)) from error
    except OSError as error:
        if error.errno is None:  # bz2's way to say so
            raise DataError(Problem(f"{archive} is cut off or damaged: {error}", again)) from error
        raise failed(f"unpacking {archive}", error) from error


def _why(error: Exception, archive: Path) -> str:
    """The reason in one line: of a file that is no tar at all, tarfile says what each way to read it met."""
    if "\n" not in str(error):
        return str(error)
    with archive.open("rb") as file:
        start = file.read(16)
    return f"it cannot be read as a tar file and starts with {start!r}" if start else "it is empty"


def plain_files(tar: tarfile.TarFile, archive: str) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """Every file of a tar with its path; folders are passed over, since files name theirs.

    Raises:
        DataError: A link or a device, or a path that leads out of the folder it is unpacked to.
    """
    for member in _members(tar):
        path = PurePosixPath(member.name)
        if member.isdir():
            continue
        if not member.isreg():
            what = "a link" if member.islnk() or member.issym() else "no plain file"
        elif path.is_absolute() or ".." in path.parts or not path.parts or "\\" in member.name or "\0" in member.name:
            what = "a path that leads out of its folder"
        else:
            yield member, path
            continue
        raise DataError(
            Problem(f"{archive} holds {member.name!r}, {what}: not the published archive", "download it again")
        )


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    members = iter(tar)
    while True:
        try:
            member = next(members, None)
        except (ValueError, LookupError, OverflowError, TypeError) as error:  # of numbers in a header that are none
            raise tarfile.ReadError(f"a header that cannot be read: {error}") from error
        if member is None:
            return
        yield member


def write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one file of a tar to ``target``; makes its folder.

    Raises:
        tarfile.TarError: It is cut off, or its name cannot be one beside the archive's others.
    """
    source = tar.extractfile(member)
    assert source is not None  # of a plain file it never is
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        opened_target = target.open("wb")
    except OSError as error:
        if error.errno not in NAME_ERRORS:
            raise
        shown = member.name if len(member.name) <= MAX_SHOWN else f"{member.name[:MAX_SHOWN]}..."
        raise tarfile.ReadError(f"it holds {shown!r}, which cannot be written: {error.strerror}") from error
    with source, opened_target as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)
    if target.stat().st_size != member.size:
        raise tarfile.ReadError(f"{member.name} ends before its {member.size:,} bytes")


def check_md5(path: Path, expected: str) -> None:
    """Compare a file's md5 sum with the published one.

    Raises:
        DataError: It is another one.
        MachineError: The file cannot be read.
    """
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file, Progress(f"md5 of {path.name}", path.stat().st_size, "bytes") as progress:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                progress.advance(len(chunk))
    except OSError as error:
        raise failed(f"reading {path}", error) from error
    if digest.hexdigest() != expected:
        raise DataError(
            Problem(
                f"{path} has the md5 sum {digest.hexdigest()}, published is {expected}: it is damaged or another file",
                f"download {path.name} again",
            )
        )


def check_space(folder: Path, num_bytes: int) -> None:
    """See that what is still to be unpacked fits on the disk.

    Args:
        folder: On the disk; need not be there yet.
        num_bytes: Of the files.

    Raises:
        MachineError: It does not fit.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(there).free, int(num_bytes * SPACE_MARGIN)
    if free < needed:
        raise MachineError(
            Problem(
                f"{folder}: unpacking needs {_size(needed)} more, and {_size(free)} are free",
                "make room there, or --root PATH on another disk",
            )
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep a second process from unpacking into the same folder, which is made.

    Raises:
        MachineError: Another one is at work there, or the folder cannot be written to.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise failed(f"writing to {root}", error) from error
    try:
        # Ends with the process, however that ends.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise MachineError(
            Problem(f"{root}: another fasttrain prepare is at work there", "wait for its end, or end it")
        ) from error
    except OSError:  # a network file system without locks: what is unpacked is counted in the end
        pass
    try:
        yield
    finally:
        os.close(handle)  # the file stays: to remove it could take another process's lock away


def is_url(source: str) -> bool:
    """Whether ``--from`` names an address and not a file."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", source) is not None


def fetch(url: str, folder: Path) -> Path:
    """Download a file into a folder; it has its name there once it is whole.

    Raises:
        ConfigError: No address of a file on the web.
        DataError: There is no such file at the address; a file of its name is there already.
        MachineError: No network, or it broke off; the disk is full.
    """
    name = _file_name(url)
    target, partial = folder / name, folder / f".{name}.partial"
    by_hand = "download it where there is a network, then --from FILE"
    if os.path.lexists(target):
        fix = f"--from {shlex.quote(str(target))} to unpack it, or rm {shlex.quote(str(target))}, then run it again"
        raise DataError(Problem(f"{target} is there, where the download of {url} would go", fix))
    try:
        with urllib.request.urlopen(url, timeout=NETWORK_TIMEOUT_S) as response, partial.open("wb") as file:
            length = response.headers.get("Content-Length") or ""
            size = int(length) if length.isdecimal() else 0
            with Progress(f"downloading {name}", size, "bytes") as progress:
                while chunk := response.read(CHUNK_BYTES):
                    file.write(chunk)
                    progress.advance(len(chunk))
        received = partial.stat().st_size
        if size and received != size:
            raise MachineError(
                Problem(f"{url} broke off after {received:,} of {size:,} bytes", f"try again, or {by_hand}")
            )
        partial.replace(target)
    except urllib.error.HTTPError as error:
        raise DataError(Problem(f"{url}: {error.code} {error.reason}", "look at the address in a browser")) from error
    except urllib.error.URLError as error:
        raise MachineError(Problem(f"{url} cannot be reached: {error.reason}", by_hand)) from error
    except (InvalidURL, ValueError, OverflowError) as error:  # of urlopen: a host or a port that cannot be one
        raise _no_address(url, error) from error
    except (HTTPException, TimeoutError, ConnectionError) as error:
        raise MachineError(Problem(f"{url} broke off: {error}", f"try again, or {by_hand}")) from error
    except OSError as error:
        raise failed(f"writing {target}", error) from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _file_name(url: str) -> str:
    """The name that a download has."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # reads it, and raises
    except ValueError as error:
        raise _no_address(url, error) from error
    name = PurePosixPath(unquote(parts.path)).name
    if parts.scheme not in ("http", "https") or name in ("", "..") or "\0" in name:
        raise ConfigError(Problem(f"--from {url}: expected http:// or https:// and the name of a file", "--from FILE"))
    return name


def _no_address(url: str, error: Exception) -> ConfigError:
    return ConfigError(Problem(f"--from {url}: no address of the web: {error}", "--from FILE, or correct the address"))


def failed(doing: str, error: OSError) -> MachineError:
    """The error to raise where the system refused something, e.g. ``unpacking x.tar``."""
    fix = f"{REFUSALS.get(error.errno or 0, 'correct it')}, then run it again"
    where = f" ({error.filename})" if error.filename else ""
    return MachineError(Problem(f"{doing} failed: {error.strerror or error}{where}", fix))
