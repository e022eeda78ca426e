"""Track runs with the tools that people already use: the numbers of the history, with the settings.

A tracker hangs on the loop from outside, as a listener. Where it fails on the way, as when its server goes away,
training goes on without it and `Tracking.troubles` says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from cofair.config.experiment import Experiment
from cofair.errors import UsageError, nearest
from cofair.results import columns
from cofair.results.record import Record

LISTED_CLIENTS = 50  # with more clients only the numbers over all of them are logged
FOLDER = Path("tracking")  # where runs without a folder of their own are logged
Ending = Literal["finished", "failed", "killed"]
Settings = Experiment | Mapping[str, Any]


class TrackedRun(Protocol):
    """One run in a tracker."""

    def log(self, values: Mapping[str, float], t: int) -> None:
        """Log the numbers of round t."""

    def end(self, how: Ending) -> None:
        """Close the run."""


class Tracker(Protocol):
    """A tool that keeps runs; `look` says how one looks at them."""

    name: str
    look: str

    def begin(self, name: str, settings: Mapping[str, Any]) -> TrackedRun:
        """Open a run with its settings."""


class Tracking:
    """A listener that passes each tested round on to every tracker."""

    def __init__(self, trackers: Sequence[Tracker], settings: Settings) -> None:
        """Hold the trackers; the settings are those of all runs, or of an experiment whose method and seed vary."""
        self.trackers, self.troubles = list(trackers), list[str]()
        self._settings = settings
        self._open: dict[tuple[str, int], dict[str, TrackedRun]] = {}

    def __call__(self, method: str, seed: int, record: Record | None) -> None:
        """Hear of a tested round."""
        if record is None:
            return
        values = numbers(record)
        runs = self._open.setdefault((method, seed), {})
        for tracker in list(self.trackers):
            with self._going_on(tracker):
                if tracker.name not in runs:
                    runs[tracker.name] = tracker.begin(f"{method}-seed{seed}", self._resolved(method, seed))
                runs[tracker.name].log(values, record.round)
        if record.last:
            self._end((method, seed), "finished")

    def close(self, how: Ending) -> None:
        """End the runs that have not come to their end."""
        for run in list(self._open):
            self._end(run, how)

    def _end(self, run: tuple[str, int], how: Ending) -> None:
        runs = self._open.pop(run)
        for tracker in list(self.trackers):
            if tracker.name in runs:
                with self._going_on(tracker):
                    runs[tracker.name].end(how)

    def _resolved(self, method: str, seed: int) -> dict[str, Any]:
        """Return the settings of one run, `table.key` each."""
        if not isinstance(self._settings, Experiment):
            return {"method.name": method, "run.seed": seed, **self._settings}
        tables = self._settings.with_method(method).with_run(seed=seed).to_dict()
        return {f"{table}.{key}": value for table, own in tables.items() for key, value in own.items()}

    @contextmanager
    def _going_on(self, tracker: Tracker) -> Iterator[None]:
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
def tracked(kinds: Sequence[str], folder: Path | None, settings: Settings) -> Iterator[Tracking]:
    """Open trackers (`tensorboard`, `mlflow`) in a folder, by default ./tracking; yields what has to hear of rounds."""
    from cofair.tracking.trackers import MLflow, TensorBoard

    makers: dict[str, Callable[[Path | None], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
    for kind in kinds:
        if kind not in makers:
            raise UsageError(f"Unknown tracker {kind!r}: {nearest(kind, makers)}")
    tracking = Tracking([makers[kind](folder) for kind in dict.fromkeys(kinds)], settings)
    try:
        yield tracking
    except KeyboardInterrupt:
        tracking.close("killed")
        raise
    except BaseException:
        tracking.close("failed")
        raise
    tracking.close("failed")  # nothing is open where all runs came to their end
