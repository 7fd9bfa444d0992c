"""Whether a path names a file: to open a named pipe waits for ever, and a device may have no end."""

from __future__ import annotations

import errno
import os
import stat

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(OSError):
    """A path where a pipe, a socket or a device lies; ``strerror`` says which, as for other errors of the system."""


def require_regular_file(path: str | os.PathLike[str]) -> None:
    """See that a file lies at ``path``, links followed, before it is opened.

    Raises:
        NotAFileError: A named pipe, a socket or a device.
        OSError: A folder; nothing at all; or the system does not say.
    """
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if kind != stat.S_IFREG:
        raise NotAFileError(errno.EINVAL, f"it is {KINDS.get(kind, 'something else')}, not a file", os.fspath(path))


def what_instead(path: str | os.PathLike[str]) -> str | None:
    """What lies at ``path`` where a file was expected, e.g. ``it is a named pipe, not a file``; None for a file."""
    try:
        require_regular_file(path)
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    return None
