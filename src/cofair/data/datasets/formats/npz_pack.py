"""Our own stored files carried between machines, whole or in pieces, and plain npz files of four arrays.

A stored file may be cut for carrying, ``split -b 60M -d cifar10.npz cifar10.npz.part``, and is read from the pieces
``cifar10.npz.part00``, ``cifar10.npz.part01``, … in their folder.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from cofair.data.datasets import content, store
from cofair.data.datasets.archives import Files
from cofair.data.datasets.content import Content
from cofair.data.datasets.store import Metadata
from cofair.errors import UsageError

FIRST_PART = ".part00"
REMEDY = "carry it over again"


def find_stored(folder: Path, name: str) -> Path | None:
    """The stored file of a data set in a folder, or its first piece."""
    for path in (folder / f"{name}.npz", folder / f"{name}.npz{FIRST_PART}"):
        if path.is_file():
            return path
    return None


def is_stored(path: Path, name: str) -> bool:
    """Whether a file is one of ours: by its name, damaged or not, or by the metadata in it."""
    ours = path.name in (f"{name}.npz", f"{name}.npz{FIRST_PART}") or path.name.endswith(f".npz{FIRST_PART}")
    return ours or (path.suffix == ".npz" and store.peek(path) is not None)


def read_stored(path: Path, name: str) -> tuple[Content, Metadata]:
    """Read and verify a stored file, joining its pieces if it comes in pieces."""
    if not path.name.endswith(FIRST_PART):
        return store.read(path, name, REMEDY)
    with tempfile.TemporaryFile() as whole:
        for part in _parts(path):
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole, store.CHUNK)
        whole.seek(0)
        return store.read(whole, name, REMEDY, str(path.with_suffix(".part*")))


def _parts(first: Path) -> list[Path]:
    parts = sorted(first.parent.glob(f"{first.stem}.part[0-9][0-9]"))
    expected = [first.with_suffix(f".part{i:02d}") for i in range(len(parts))]
    if parts != expected:
        missing = next(path for path in expected if path not in parts)
        raise UsageError(f"{missing} is missing between the other parts of {first.stem}")
    return parts


def read_npz(name: str) -> Callable[[Files], Content | None]:
    """A reader of a plain npz file with the arrays x_train, y_train, x_test and y_test."""

    def read(files: Files) -> Content | None:
        member = files.find(name)
        if member is None:
            return None
        with files.open(member) as stream, _npz(stream) as arrays:
            return content.images(arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"])

    return read


def _npz(stream: IO[bytes]) -> np.lib.npyio.NpzFile:
    arrays = np.load(stream, allow_pickle=False)
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise ValueError("it is not an npz file")
    return arrays
