"""A disk that forgets: whatever was not synced goes with the power."""

import os
import stat
from pathlib import Path

import pytest


class Disk:
    """Remembers what would be left after a power cut: contents of synced files, under names in synced folders."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        """Watch everything below a folder, which the disk has."""
        self._root, self.syncs = root, 0
        self._contents: dict[int, bytes] = {}  # by the number that a file keeps when it is renamed
        self._names: dict[Path, dict[str, int]] = {}
        self._held: list[int] = []  # open files, so that no number is given out twice
        patch.setattr(os, "fsync", self._sync)

    def _sync(self, handle: int) -> None:
        self.syncs += 1
        path, status = Path(f"/proc/self/fd/{handle}").readlink(), os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = {child.name: child.stat().st_ino for child in path.iterdir()}
        else:
            self._contents[status.st_ino] = path.read_bytes()
            self._held.append(os.dup(handle))

    def left(self, folder: Path, to: Path) -> Path:
        """Write to another place what is left of a folder if the power goes now."""
        to.mkdir(parents=True)
        above = folder
        while above != self._root:
            if above.name not in self._names.get(above.parent, {}):
                return to
            above = above.parent
        for name, number in self._names.get(folder, {}).items():
            if (folder / name).is_file() or number in self._contents:
                (to / name).write_bytes(self._contents.get(number, b""))
        return to

    def close(self) -> None:
        """Let go of the files."""
        for handle in self._held:
            os.close(handle)
