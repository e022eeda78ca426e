"""Track runs with the tools that people already use: the numbers of the history, with the settings.

A tracker is a listener, outside the loop. If it fails on the way, as when its server goes away, training continues
without it and `Tracking.troubles` says so. A new tracker is a file and a line in `TRACKERS` of this package.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from cofair.config.experiment import Experiment
from cofair.config.job import Job, run_name
from cofair.errors import UsageError, nearest
from cofair.results import columns
from cofair.results.listener import Listener
from cofair.results.record import Record
from cofair.tracking import TRACKERS

LISTED_CLIENTS = 50  # with more clients only the numbers over all of them are logged
FOLDER = Path("tracking")  # where runs without a folder of their own are logged
Ending = Literal["finished", "failed", "killed"]


class TrackedRun(Protocol):
    """One run in a tracker."""

    def log(self, values: Mapping[str, float], t: int) -> None:
        """Log the numbers of round t."""

    def end(self, how: Ending) -> None:
        """Close the run."""


class Tracker(Protocol):
    """A tool that keeps runs, made with a folder (None: ./tracking); `look` says how to look at them."""

    name: str
    look: str

    def begin(self, name: str, settings: Mapping[str, Any]) -> TrackedRun:
        """Open a run with its settings."""


class Tracking(Listener):
    """A listener that passes each tested round on to every tracker."""

    def __init__(
        self, trackers: Sequence[Tracker], settings: Mapping[str, Any] | None = None,
        name_of: Callable[[Job], str] | None = None,
    ) -> None:  # fmt: skip
        """Take trackers; `settings` are logged besides those of a run's experiment.

        Runs are named by their method and seed, or as `name_of` says.
        """
        self.trackers, self.troubles = list(trackers), list[str]()
        self._settings, self._name_of = dict(settings or {}), name_of or (lambda job: run_name(job.experiment))
        self._open: dict[Job, dict[str, TrackedRun]] = {}

    def tested(self, job: Job, record: Record) -> None:
        """Log a tested round; the first one of a run opens it."""
        values, runs = numbers(record), self._open.setdefault(job, {})
        for tracker in list(self.trackers):
            with self._dropping(tracker):
                if tracker.name not in runs:
                    runs[tracker.name] = tracker.begin(self._name_of(job), self._known(job.experiment))
                runs[tracker.name].log(values, record.round)
        if record.last:
            self._end(job, "finished")

    def failed(self, job: Job, reason: str) -> None:
        """End a run that has failed."""
        if job in self._open:
            self._end(job, "failed")

    def close(self, how: Ending) -> None:
        """End the runs that have not finished."""
        for job in list(self._open):
            self._end(job, how)

    def _end(self, job: Job, how: Ending) -> None:
        runs = self._open.pop(job)
        for tracker in list(self.trackers):
            if tracker.name in runs:
                with self._dropping(tracker):
                    runs[tracker.name].end(how)

    def _known(self, experiment: Experiment) -> dict[str, Any]:
        """Return the settings of one run, `table.key` each."""
        tables = experiment.to_dict()
        own = {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}
        return {**own, **self._settings}

    @contextmanager
    def _dropping(self, tracker: Tracker) -> Iterator[None]:
        """Drop a tracker that fails, and note why."""
        try:
            yield
        except Exception as error:  # whatever a tracker cannot do, hours of training are worth more
            self.trackers.remove(tracker)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            self.troubles.append(f"Tracking with {tracker.name} stopped: {reason}.")


def numbers(record: Record) -> dict[str, float]:
    """Return what is logged of a round; what is undefined is left out."""
    values, got = columns.tracked(record), record.accuracies
    if len(got) <= LISTED_CLIENTS:
        values |= {f"client_accuracy/{i}": value for i, value in enumerate(got)}
        values |= {f"client_reputation/{i}": value for i, value in enumerate(record.reputation or ())}
    return values


@contextmanager
def tracked(
    kinds: Sequence[str], folder: Path | None = None, settings: Mapping[str, Any] | None = None,
    name_of: Callable[[Job], str] | None = None,
) -> Iterator[Tracking]:  # fmt: skip
    """Open trackers by their names in a folder, by default ./tracking; yields the listener that logs to them."""
    for kind in kinds:
        if kind not in TRACKERS:
            raise UsageError(f"Unknown tracker {kind!r}: {nearest(kind, TRACKERS)}")
    tracking = Tracking([_made(kind, folder) for kind in dict.fromkeys(kinds)], settings, name_of)
    try:
        yield tracking
    except KeyboardInterrupt:
        tracking.close("killed")
        raise
    except BaseException:
        tracking.close("failed")
        raise
    tracking.close("failed")  # nothing is open where all runs came to their end


def _made(kind: str, folder: Path | None) -> Tracker:
    module, _, name = TRACKERS[kind].partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), name)(folder)
    return tracker


def package(module: str, tracker: str, extra: str = "track") -> Any:
    """Return a tracker's own package, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            f"--track {tracker} needs a package that is not installed: pip install 'cofair[{extra}]'"
        ) from None


def setting_text(value: Any) -> str:
    """Return a setting as trackers without a type for it keep it."""
    return "none" if value is None else str(value)
