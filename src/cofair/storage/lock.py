"""One writer per folder: a lock of the operating system, which is released when the process ends, however it ends."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cofair.errors import RunError
from cofair.storage.folder import explaining_write_errors, make_folder

LOCK = ".lock"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make a folder if it does not exist, and lock it; a second process is refused."""
    with explaining_write_errors(path):
        make_folder(path)
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _hold(handle, path)
        yield
    finally:
        os.close(handle)


def _hold(handle: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RunError(f"Another run is writing to {path}: wait until it ends, or name another folder.") from None
        # some network disks have no locks: a run without one is better than no run
