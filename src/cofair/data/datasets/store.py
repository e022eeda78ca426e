"""The folder of fetched data sets: one uncompressed npz file each, written whole or not at all.

A file holds the arrays of :class:`Content` and a member ``metadata.json`` with the format's version, the source
taken, and the content's sha256, which every load checks again. Nothing in it is pickle.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cofair.data.datasets.content import MEMBERS, Content, member_header, raw_bytes
from cofair.errors import RunError

FORMAT = 1
METADATA = "metadata.json"
CHUNK = 1 << 20
DAY_S = 86_400
NOT_VERIFIED = "content not verified"  # how `verified` begins in the metadata of what only has the right sizes

Metadata = dict[str, Any]
Progress = Callable[[str, int, int | None], None]


def folder() -> Path:
    """Where data sets lie: ``$COFAIR_HOME/datasets``, otherwise the platform's folder for a user's data."""
    if home := os.environ.get("COFAIR_HOME"):
        return Path(home).expanduser() / "datasets"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME", ""))
        # The XDG specification: a relative path is invalid and to be ignored.
        base = base if base.is_absolute() else Path.home() / ".local" / "share"
    return base / "cofair" / "datasets"


def file_of(name: str) -> Path:
    """The file that holds, or would hold, a data set."""
    return folder() / f"{name}.npz"


def write(path: Path, content: Content, metadata: Metadata, progress: Progress) -> None:
    """Write a data set so that ``path`` is afterwards either the whole new file or what it was before."""
    metadata = {"format": FORMAT, "kind": content.kind, "content_sha256": content.sha256, **metadata}
    size = sum(array.nbytes for array in content.arrays.values())
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        with unfinished.open("xb") as file:
            _write_members(file, content, metadata, size, progress)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; it needs {size / 1e6:.0f} MB in a folder you may "
            "write to, which COFAIR_HOME can name"
        ) from error
    finally:
        # Also on KeyboardInterrupt. After a successful replace there is nothing left to remove.
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove what a killed process left of an earlier attempt; one still at work is less than a day old."""
    for left in path.parent.glob(f".{path.name}.*.unfinished"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > DAY_S:
                left.unlink()


def _write_members(file: IO[bytes], content: Content, metadata: Metadata, size: int, progress: Progress) -> None:
    done = 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        # A fixed date makes equal data equal files.
        archive.writestr(zipfile.ZipInfo(METADATA), json.dumps(metadata, indent=1))
        for name in MEMBERS[content.kind]:
            array = np.ascontiguousarray(content.arrays[name])
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array_header_1_0(member, npy.header_data_from_array_1_0(array))
                for piece in _pieces(array):
                    member.write(piece)
                    done += len(piece)
                    progress("writing", done, size)


def _pieces(array: NDArray[Any]) -> list[memoryview]:
    view = raw_bytes(array)
    return [view[start : start + CHUNK] for start in range(0, len(view), CHUNK)]


def read(source: Path | IO[bytes], name: str, remedy: str, shown: str = "") -> tuple[Content, Metadata]:
    """Read a stored data set and verify it; a damaged file is an error that names the file and the remedy."""
    shown = shown or str(source)
    try:
        with zipfile.ZipFile(source) as archive:
            metadata = _metadata(archive)
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {metadata.get('format')!r}, this cofair reads {FORMAT}")
            if metadata.get("name") != name:
                raise ValueError(f"it holds {metadata.get('name')!r}")
            digest = hashlib.sha256()
            arrays = {member: _read_array(archive, member, digest) for member in MEMBERS[metadata["kind"]]}
            if digest.hexdigest() != metadata["content_sha256"]:
                raise ValueError("its content does not match its recorded sha256")
            return Content(metadata["kind"], arrays, tuple(metadata.get("class_names", ()))), metadata
    except FileNotFoundError:
        raise
    # Whatever zipfile, numpy and json raise on damaged bytes (a dozen types): all mean the same to the user.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise RunError(f"{shown} is damaged ({reason}): {remedy}") from error


def peek(path: Path) -> Metadata | None:
    """The metadata of a stored file without its arrays; None where it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _metadata(archive)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        return None


def _metadata(archive: zipfile.ZipFile) -> Metadata:
    metadata = json.loads(archive.read(METADATA))
    if not isinstance(metadata, dict):
        raise ValueError(f"its {METADATA} is not an object")
    return metadata


def _read_array(archive: zipfile.ZipFile, name: str, digest: "hashlib._Hash") -> NDArray[Any]:
    """Read one array straight into its memory, hashing on the way; zipfile checks the CRC at the end."""
    with archive.open(f"{name}.npy") as member:
        assert isinstance(member, zipfile.ZipExtFile)
        if npy.read_magic(member) != (1, 0):
            raise ValueError(f"{name} is not in npy format 1.0")
        shape, fortran, dtype = npy.read_array_header_1_0(member)
        # Checked before anything is allocated, so that a damaged header cannot ask for all memory.
        expected = archive.getinfo(f"{name}.npy").file_size - member.tell()
        if fortran or dtype.hasobject or dtype.itemsize * int(np.prod(shape, dtype=object)) != expected:
            raise ValueError(f"{name} does not have the size its header says")
        array = np.empty(shape, dtype)
        digest.update(member_header(name, dtype, shape))
        for piece in _pieces(array):
            if member.readinto(piece) != len(piece):
                raise ValueError(f"{name} ends early")
            digest.update(piece)
        return array
