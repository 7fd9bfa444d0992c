"""Which images a run sees, as a short text: a run that goes on must find the same ones."""

from __future__ import annotations

import hashlib
import os

import numpy as np

from fasttrain.data.scan import Scan


def digest_of(images: Scan) -> str | None:
    """Digest of the paths below the root, or the pixels, and of the labels, of both splits in their order.

    None where there are no images. Files are not read: a changed file under the same name is not noticed.
    """
    if images.source == "expected":
        return None
    digest = hashlib.blake2b(digest_size=16)
    for split in (images.train, images.val):
        names = (_below(path, images.root) for path in split.paths)
        digest.update("\0".join(names).encode(errors="surrogateescape"))
        digest.update(np.ascontiguousarray(split.labels).data)
        if split.images is not None:
            digest.update(np.ascontiguousarray(split.images).data)
    return digest.hexdigest()


def _below(path: str, root: str) -> str:
    """``path`` as seen from ``root``, both absolute; cut where it can be: relpath takes seconds for a million."""
    start = root.rstrip(os.sep) + os.sep
    return path[len(start) :] if path.startswith(start) else os.path.relpath(path, root)
