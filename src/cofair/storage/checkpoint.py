"""Checkpoints: where a run stands, so that it can resume from there and reach exactly the same numbers.

The last two are kept. A new one is written beside them and takes its place only once the disk has it, so that at least
one is whole at any moment. Nothing random is stored: randomness is addressed by round.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import cofair
from cofair.errors import RunError
from cofair.storage import tensor_file
from cofair.storage.folder import CHECKPOINT, PREVIOUS, explaining_write_errors, sync_folder
from cofair.storage.tensor_file import TensorFile

FORMAT = 3  # of a checkpoint
SECONDS = 10.0  # at least, between two checkpoints written by time
SHARE = 1 / 50  # of the time, at most, that checkpoints written by time may take
RATE = 200e6  # bytes hashed and written per second, until that has been measured


class Resumable(Protocol):
    """What a checkpoint holds: where a run stands after a round."""

    @property
    def round(self) -> int:
        """Return the last complete round."""

    @property
    def last(self) -> bool:
        """Return whether the run has ended."""


class Checkpoints:
    """Writes a run's checkpoints: every so many rounds (0: never), or by time, so that they cost little."""

    def __init__(self, folder: Path, every: int | None, runs: int = 1) -> None:
        """Write to a folder; runs that share a process also share the time for checkpoints."""
        self._folder, self._every, self._runs = folder, every, runs
        self._latest, self._cost = time.monotonic(), 0.0

    @property
    def any(self) -> bool:
        """Return whether there will be checkpoints at all."""
        return self._every != 0

    def expect(self, size: int) -> None:
        """Set how many bytes a checkpoint has, so that the first one also stays within its share of the time."""
        self._cost = size / RATE

    def due(self, state: Resumable) -> bool:
        """Return whether a checkpoint is due; a run that has ended needs none, because its results follow at once."""
        if not self.any or state.last:
            return False
        if self._every is not None:
            return state.round % self._every == 0
        return time.monotonic() - self._latest >= max(SECONDS, self._cost * self._runs / SHARE)

    def write(self, facts: Mapping[str, Any], state: Resumable) -> None:
        """Write a checkpoint, whole or not at all; the latest one becomes the previous one."""
        began = time.monotonic()
        path, temporary = self._folder / CHECKPOINT, self._folder / f".{CHECKPOINT}.tmp"
        with explaining_write_errors(self._folder):
            try:
                tensor_file.write(temporary, {"format": FORMAT, "round": state.round, **facts}, state)
                if path.exists():
                    path.replace(self._folder / PREVIOUS)
                temporary.replace(path)
                sync_folder(self._folder)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        self._latest = time.monotonic()
        self._cost = max(0.0, self._latest - began)

    def remove(self) -> None:
        """Remove the checkpoints of a run that has ended."""
        with explaining_write_errors(self._folder):
            for name in (CHECKPOINT, PREVIOUS):
                (self._folder / name).unlink(missing_ok=True)


def exists(folder: Path) -> bool:
    """Say whether a folder holds a checkpoint."""
    return (folder / CHECKPOINT).exists() or (folder / PREVIOUS).exists()


def latest(folder: Path) -> TensorFile | None:
    """Return a folder's latest checkpoint, or None; if it is damaged, the error offers the previous one."""
    path, previous = folder / CHECKPOINT, folder / PREVIOUS
    if not path.exists():  # the process was killed between the two renames, or the user followed the advice below
        return _read(previous) if previous.exists() else None
    try:
        return _read(path)
    except RunError as error:
        try:
            good = _read(previous)
        except RunError:
            raise error from None
        advice = f"delete it to resume from round {good.facts['round']}, which is in {previous.name}"
        raise RunError(f"{str(error).rstrip('.')}; {advice}.") from None


def _read(path: Path) -> TensorFile:
    found = TensorFile(path)
    if not isinstance(found.facts, dict):
        raise RunError(f"{path} is damaged: it was cut off or altered.")
    if found.facts.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {found.facts.get('format')!r}, which cofair {cofair.__version__} cannot read: resume "
            "the run with the version that wrote it, or delete its folder to start again."
        )
    return found
