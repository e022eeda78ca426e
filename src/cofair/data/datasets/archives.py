"""Published files by name, wherever they lie: in a folder, a zip or a tar archive.

Archives are never unpacked to paths of their own choosing: members are found by name and read as streams, so that
``..``, absolute names and links inside an archive mean nothing.
"""

import gzip
import shutil
import tarfile
import tempfile
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath
from typing import IO, Self

from cofair.errors import UsageError

FOLDER_DEPTH = 3


class Files(ABC):
    """Some files, found by the names under which they were published."""

    where: str

    @abstractmethod
    def find(self, name: str) -> str | None:
        """The member called ``name``, at the top or in a folder below; None where there is none."""

    def need(self, name: str) -> str:
        """The member called ``name``, which must be there."""
        member = self.find(name)
        if member is None:
            raise UsageError(f"{self.where} has no {name}, which belongs to this data set")
        return member

    @abstractmethod
    def under(self, prefix: str) -> list[str]:
        """The members directly in a folder, sorted."""

    @abstractmethod
    def size(self, member: str) -> int:
        """Bytes of a member."""

    @abstractmethod
    def open(self, member: str) -> IO[bytes]:
        """A member's bytes."""

    def close(self) -> None:  # noqa: B027 (a folder has nothing to close)
        """Let go of the archive."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Folder(Files):
    """Files in a folder, or up to two folders below it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)

    def find(self, name: str) -> str | None:
        """The file nearest to the top; two at the same depth are a question to the user."""
        for depth in range(FOLDER_DEPTH):
            found = sorted(p for p in self.path.glob("/".join(["*"] * depth + [name])) if p.is_file())
            if len(found) > 1:
                raise UsageError(
                    f"{self.path} holds {name} more than once, as {found[0]} and {found[1]}: name the one folder"
                )
            if found:
                return found[0].relative_to(self.path).as_posix()
        return None

    def under(self, prefix: str) -> list[str]:
        """The files directly in a folder, sorted."""
        place = self._inside(prefix)
        return sorted(f"{prefix}/{p.name}" for p in place.iterdir() if p.is_file()) if place.is_dir() else []

    def size(self, member: str) -> int:
        """Bytes of a file."""
        return self._inside(member).stat().st_size

    def open(self, member: str) -> IO[bytes]:
        """A file's bytes."""
        return self._inside(member).open("rb")

    def _inside(self, member: str) -> Path:
        """Where a member lies; names that a data set's own lists give must not lead out of the folder."""
        named = PurePosixPath(member)
        if named.is_absolute() or ".." in named.parts:
            raise ValueError(f"it names a file outside of itself: {member}")
        return self.path / named


class _Archive(Files):
    """What zip and tar have in common: a table of members."""

    def __init__(self, where: str, sizes: dict[str, int]) -> None:
        self.where = where
        self._sizes = sizes
        self._by_name: dict[str, list[str]] = {}
        self._by_folder: dict[str, list[str]] = {}
        for member in sorted(sizes):
            path = PurePosixPath(member)
            self._by_name.setdefault(path.name, []).append(member)
            self._by_folder.setdefault(str(path.parent), []).append(member)

    def find(self, name: str) -> str | None:
        """The member nearest to the top."""
        wanted = PurePosixPath(name)
        found = [m for m in self._by_name.get(wanted.name, []) if PurePosixPath(m).match(name)]
        return min(found, key=lambda member: (member.count("/"), member), default=None)

    def under(self, prefix: str) -> list[str]:
        """The members directly in a folder, sorted."""
        return self._by_folder.get(prefix, [])

    def size(self, member: str) -> int:
        """Bytes of a member."""
        return self._sizes[member]


class Zip(_Archive):
    """Files in a zip archive."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        super().__init__(str(path), {i.filename: i.file_size for i in self._archive.infolist() if not i.is_dir()})

    def open(self, member: str) -> IO[bytes]:
        """A member's bytes."""
        return self._archive.open(member)

    def close(self) -> None:
        """Close the archive's file."""
        self._archive.close()


class Tar(_Archive):
    """Files in a tar archive, compressed with gzip or not."""

    def __init__(self, path: Path) -> None:
        # A compressed tar cannot be read out of order without starting again from the front: inflate it once, into
        # a file that has no name and vanishes with its handle.
        self._plain = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        try:
            with path.open("rb") as packed:
                compressed = packed.read(2) == b"\x1f\x8b"
                packed.seek(0)
                stream = gzip.GzipFile(fileobj=packed) if compressed else packed
                shutil.copyfileobj(stream, self._plain, 1 << 20)
            self._plain.seek(0)
            self._archive = tarfile.open(fileobj=self._plain, mode="r:")  # noqa: SIM115
            # Regular files only: what a link inside an archive points to is never followed.
            self._members = {m.name: m for m in self._archive.getmembers() if m.isreg()}
        except BaseException:
            self._plain.close()
            raise
        super().__init__(str(path), {name: member.size for name, member in self._members.items()})

    def open(self, member: str) -> IO[bytes]:
        """A member's bytes."""
        stream = self._archive.extractfile(self._members[member])
        assert stream is not None, "a regular file has bytes"
        return stream

    def close(self) -> None:
        """Close the archive and drop its inflated copy."""
        self._archive.close()
        self._plain.close()


def open_files(path: Path) -> Files:
    """Open a folder or an archive; any other file stands for the folder it lies in."""
    if path.is_dir():
        return Folder(path)
    if path.suffix == ".zip":
        return Zip(path)
    if path.name.endswith((".tar", ".tar.gz", ".tgz")):
        return Tar(path)
    return Folder(path.parent)


def read_exactly(stream: IO[bytes], count: int, what: str) -> bytes:
    """``count`` bytes, or an error that says what ended early."""
    data = stream.read(count)
    if len(data) != count:
        raise ValueError(f"{what} ends early: {len(data)} bytes where {count} were expected")
    return data
