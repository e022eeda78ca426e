"""How a command ends that cannot finish: interrupted, with no reader for its output, or no room for it."""

import contextlib
import errno
import os
import sys
from typing import Any

from typer.core import TyperGroup

INTERRUPTED = 130  # 128 + SIGINT, as shells count
NOBODY_READS = 141  # 128 + SIGPIPE
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """The user pressed Ctrl-C."""


class OutputClosed(Exception):  # noqa: N818
    """The reader of standard output has gone, as `head` does."""


class Commands(TyperGroup):
    """Commands whose interruptions reach the caller; typer would turn them into exit codes and say nothing."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command and write all of its output."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise OutputClosed from None


def is_full_disk(error: OSError) -> bool:
    """Return whether standard output could not be written: errors of cofair's own files name them."""
    return error.filename is None and error.errno in _NO_ROOM


def is_full_memory(error: Exception) -> bool:
    """Return whether memory ran out, on a CPU or a GPU: torch has no single exception for that."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in said or "can't allocate memory" in said


def drop_output() -> None:
    """Discard output that is still unwritten, so that Python does not fail on it again when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
