"""A run folder: the resolved experiment, versions and seed, the history as it is written, the summary.

experiment.toml   every setting, resolved; `cofair run` takes it as it is
run.json          versions, device, engine, clients, contributions
history.jsonl     one line a tested round
summary.json      the table cell by each rule, at the end
"""

import errno
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch

import cofair
from cofair.errors import RunError, UsageError
from cofair.runs.history import Record

FORMAT = 1  # of a run folder; counts up when an older reader would misread a newer folder
FILES = ("experiment.toml", "run.json", "history.jsonl", "summary.json")


class RunFolder:
    """Writes one run; nothing is ever half-written except the last line of the history."""

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Take an empty or new folder, or one with an earlier run if that may be overwritten. Touches nothing yet."""
        self.path = path
        refuse_earlier(path, FILES, overwrite)

    def begin(self, experiment_toml: str, facts: dict[str, Any]) -> None:
        """Make the folder, clear an earlier run, and write what is known before the first round."""
        with told(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)
        self._write("experiment.toml", experiment_toml)
        self._write("run.json", json.dumps(facts, indent=1) + "\n")

    def record(self, record: Record) -> None:
        """Append a tested round to the history."""
        with told(self.path), (self.path / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(record.to_json() + "\n")

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary of a complete run."""
        self._write("summary.json", json.dumps(summary, indent=1) + "\n")

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text)


def refuse_earlier(path: Path, files: Sequence[str], overwrite: bool) -> None:
    """Refuse a path that is no folder, holds earlier results that may not be overwritten, or cannot be written to."""
    with told(path):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file: name a folder for the results.")
        if not overwrite and any((path / name).exists() for name in files):
            raise UsageError(f"{path} holds results already: name another folder, or allow it (overwrite).")
        nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied")


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: to a temporary neighbour first, then renamed."""
    with told(path.parent):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        reasons = {errno.ENOSPC: "the disk is full", errno.EROFS: "the disk is read-only"}
        reason = reasons.get(error.errno or 0) or (error.strerror or str(error)).lower()
        raise RunError(f"Cannot write to {path}: {reason}; what was written before is kept.") from error


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "cofair": cofair.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
    }
