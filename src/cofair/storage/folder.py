"""A run folder: the resolved experiment, versions and seed, the history as it is written, the summary.

experiment.toml   every setting, resolved; `cofair run` takes it as it is
run.json          versions, device, engine, clients, contributions
history.jsonl     one line per tested round
ledger.jsonl      one entry per tested round, each with the hash of the one before
checkpoint.safetensors, checkpoint-previous.safetensors   where the run stands, until it ends
rewards.safetensors   the models of a finished run
summary.json      the table cell by each rule, at the end
"""

import errno
import hashlib
import json
import os
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cofair
from cofair.errors import RunError, UsageError
from cofair.results.record import Record

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
}
FORMAT = 1  # of a run folder; raised when an older reader would misread a newer folder
CHECKPOINT, PREVIOUS, REWARDS = "checkpoint.safetensors", "checkpoint-previous.safetensors", "rewards.safetensors"
FILES = ("experiment.toml", "run.json", "history.jsonl", "ledger.jsonl", CHECKPOINT, PREVIOUS, REWARDS, "summary.json")


class RunFolder:
    """Writes one run; only the last line of the history and of the ledger can ever be half-written."""

    def __init__(self, path: Path, *, overwrite: bool = False, resume: bool = False) -> None:
        """Take an empty or new folder, or one whose earlier run is to be resumed or may be overwritten.

        Nothing is written yet.
        """
        self.path, self.overwrite, self.resume = path, overwrite, resume
        self.history, self.ledger = AppendOnly(path / "history.jsonl"), AppendOnly(path / "ledger.jsonl")
        refuse_earlier(path, FILES, overwrite or resume)

    def begin(self, experiment_toml: str, facts: dict[str, Any]) -> None:
        """Make the folder, remove an earlier run, and write what is known before the first round."""
        with explaining_write_errors(self.path):
            make_folder(self.path)
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)
        self.tidy()
        self.history, self.ledger = AppendOnly(self.history.path), AppendOnly(self.ledger.path)
        self._write("experiment.toml", experiment_toml)
        self._write("run.json", json.dumps(facts, indent=1) + "\n")

    def restart(self, facts: dict[str, Any], first_line: str) -> None:
        """Remove what an earlier process wrote, except for the settings and the first line of the ledger."""
        with explaining_write_errors(self.path):
            for name in FILES:
                if name not in ("experiment.toml", "run.json", "ledger.jsonl"):
                    (self.path / name).unlink(missing_ok=True)
        self.history = AppendOnly(self.history.path)
        encoded = f"{first_line}\n".encode()
        self.ledger.cut({"bytes": len(encoded), "sha256": hashlib.sha256(encoded).hexdigest()})
        self._write("run.json", json.dumps(facts, indent=1) + "\n")

    def tidy(self) -> None:
        """Remove the temporary files of a process that was killed while writing."""
        with explaining_write_errors(self.path):
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)

    def record(self, record: Record) -> None:
        """Append a tested round to the history."""
        self.history.append(record.to_json())

    def sync(self) -> None:
        """Wait until the disk has the whole ledger and the whole history."""
        self.ledger.sync()
        self.history.sync()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary of a complete run."""
        self._write("summary.json", json.dumps(summary, indent=1) + "\n")

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text)


class AppendOnly:
    """A file of lines that only grows, with its current length and the hash of its content.

    A power cut may lose a line until `sync`, which therefore comes before anybody hears of the line.
    """

    def __init__(self, path: Path) -> None:
        """Start with a file that does not exist yet."""
        self.path = path
        self._bytes, self._sha = 0, hashlib.sha256()
        self._waiting = self._unnamed = False  # does the disk still lack lines, or the file's name in its folder?

    def append(self, line: str) -> None:
        """Add a line."""
        encoded = f"{line}\n".encode()
        self._waiting, self._unnamed = True, self._unnamed or not self._bytes
        with explaining_write_errors(self.path.parent), self.path.open("ab") as file:
            file.write(encoded)
        self._bytes += len(encoded)
        self._sha.update(encoded)

    def sync(self) -> None:
        """Wait until the disk has every line."""
        if not self._waiting:
            return
        with explaining_write_errors(self.path.parent):
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            if self._unnamed:
                sync_folder(self.path.parent)
        self._waiting = self._unnamed = False

    def mark(self) -> dict[str, Any]:
        """Return the current length and hash, once the disk has every line."""
        self.sync()
        return {"bytes": self._bytes, "sha256": self._sha.hexdigest()}

    def cut(self, mark: Mapping[str, Any]) -> None:
        """Truncate the file to a mark; refuse one whose content up to there has changed."""
        try:
            with self.path.open("rb") as file:
                kept = file.read(mark["bytes"])
        except FileNotFoundError:
            kept = b""
        except OSError as error:
            raise RunError(f"Cannot read {self.path}: {error.strerror}.") from None
        sha = hashlib.sha256(kept)
        if len(kept) < mark["bytes"] or sha.hexdigest() != mark["sha256"]:
            raise RunError(f"{self.path} was cut off or altered since the checkpoint, so the run cannot be resumed.")
        with explaining_write_errors(self.path.parent):
            self._waiting = self._unnamed = self.path.exists()
            if self._waiting:
                os.truncate(self.path, len(kept))
        self._bytes, self._sha = len(kept), sha


def refuse_earlier(path: Path, files: Sequence[str], overwrite: bool, allowed_by: str = "--overwrite") -> None:
    """Refuse a path that is not a folder, holds results that may not be overwritten, or cannot be written to."""
    with explaining_write_errors(path):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file: name a folder for the results.")
        if not overwrite and any((path / name).exists() for name in files):
            raise UsageError(f"{path} holds results already: name another folder, or allow its use ({allowed_by}).")
        nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied")


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and wait until the disk has their names."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of a folder's files, where folders can be opened for that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks save names without being asked
            raise
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all, by renaming a temporary one; on return the disk has it."""
    with explaining_write_errors(path.parent):
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
        # the process's umask decides who may read it: a deployment keeps its files private
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def explaining_write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one sentence."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()
        raise RunError(f"Cannot write to {path}: {reason}; what was written before is kept.") from error


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    import numpy  # here, so that processes that only write files start without them
    import torch

    return {
        "cofair": cofair.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
    }
