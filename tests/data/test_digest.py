"""The digest says which images a run sees, wherever their folder lies."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fasttrain.data.digest import digest_of
from fasttrain.data.scan import Counts, Scan, Split


def scan_of(root: str, paths: list[str]) -> Scan:
    train = Split(paths, np.array([0, 1]))
    return Scan(root, ("a", "b"), train, Split(), "scan", Counts(2, 0, 2))


def expected(names: bytes) -> str:
    # Of training names and labels, then of the validation split, which is empty.
    return hashlib.blake2b(names + np.array([0, 1]).tobytes(), digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("root", "paths", "names"),
    [
        ("/set", ["/set/train/a/1.jpg", "/set/train/b/2.jpg"], b"train/a/1.jpg\0train/b/2.jpg"),
        ("/", ["/train/a/1.jpg", "/train/b/2.jpg"], b"train/a/1.jpg\0train/b/2.jpg"),
        ("/set", ["/set2/a/1.jpg", "/elsewhere/2.jpg"], b"../set2/a/1.jpg\0../elsewhere/2.jpg"),
        ("/set", ["/set/\udcff.jpg", "/set/b.jpg"], b"\xff.jpg\0b.jpg"),
    ],
)
def test_paths_count_as_seen_from_the_root(root: str, paths: list[str], names: bytes) -> None:
    assert digest_of(scan_of(root, paths)) == expected(names)
