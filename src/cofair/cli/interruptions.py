"""How a command ends that cannot finish: interrupted, with no reader for its output, or no room for it."""

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

INTERRUPTED = 130  # 128 + SIGINT, as shells count
NOBODY_READS = 141  # 128 + SIGPIPE
_RESUMED = ("run", "compare", "sweep")  # with --resume
_CONTINUED = ("reproduce",)  # by the same command
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


def after_interruption(words: Sequence[str]) -> str:
    """Say what an interrupted command leaves, and by which one it goes on."""
    command = words[0] if words else ""
    if command not in (*_RESUMED, *_CONTINUED):
        return "interrupted; what was finished is kept."
    if command in _CONTINUED:
        again = list(words)
    elif any(word == "--out" or word.startswith("--out=") for word in words):
        again = [word for word in words if word not in ("--overwrite", "--resume")] + ["--resume"]
    else:
        return "interrupted; nothing was written, so nothing can be resumed: give a folder with --out DIR next time."
    return f"interrupted; what was finished is kept. To go on: {shlex.join(['cofair', *again])}"


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
