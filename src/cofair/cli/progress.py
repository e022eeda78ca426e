"""Progress in a terminal: round, fairness, accuracy, time left. In a log, sweeps print a line now and then."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from rich import progress as rich_progress
from rich.console import Console

from cofair.config.job import Job
from cofair.results.listener import Listener, Listeners
from cofair.results.record import Record
from cofair.results.result import Outcome
from cofair.tracking.base import Tracking, tracked

Item = TypeVar("Item")
WIDE = 120  # columns from which there is room for a bar
PAUSE = 30.0  # seconds at least between two lines of a sweep in a log


def run_progress(runs: int = 1) -> AbstractContextManager[Listener]:
    """Show the run that is training, and how many of several are done."""
    return _bars(_RunProgress, runs)


def sweep_progress(runs: int) -> AbstractContextManager[Listener]:
    """Show how many runs of a sweep are done, in a log with a line now and then; failures are printed as they come."""
    return _bars(_SweepProgress, runs)


@contextmanager
def _bars(shown: Callable[[int, rich_progress.Progress, Console], Listener], runs: int) -> Iterator[Listener]:
    console = Console(stderr=True)
    bars = rich_progress.Progress(
        *_columns(console.width), console=console, transient=True, disable=not console.is_terminal
    )
    with bars:
        yield shown(runs, bars, console)


class _RunProgress(Listener):
    def __init__(self, runs: int, bars: rich_progress.Progress, console: Console) -> None:
        self._runs, self._bars, self._console, self._done = runs, bars, console, 0
        self._overall = bars.add_task("all runs", total=runs, status=f"0 of {runs} done", visible=runs > 1)
        self._current = bars.add_task("preparing", total=None, status="")
        self._shown = ""

    def preparing(self, job: Job) -> None:
        self._show(f"contributions, seed {job.experiment.run.seed}", None)

    def tested(self, job: Job, record: Record) -> None:
        own, rounds = job.experiment, job.experiment.training.rounds
        self._show(f"{own.method.name}, seed {own.run.seed}", rounds)
        fairness = "–" if record.fairness is None else f"{record.fairness:.1f}"
        status = f"round {record.round}/{rounds}  γ {fairness}  best {100 * max(record.accuracies):.1f} %"
        self._bars.update(self._current, completed=record.round, status=status)

    def finished(self, job: Job, outcome: Outcome) -> None:
        self._count()

    def failed(self, job: Job, reason: str) -> None:
        _print_failure(self._console, job, reason)
        self._count()

    def _show(self, description: str, total: int | None) -> None:
        if description != self._shown:
            self._shown = description
            self._bars.reset(self._current, total=total, description=description, status="")

    def _count(self) -> None:
        self._done += 1
        self._bars.update(self._overall, completed=self._done, status=f"{self._done} of {self._runs} done")


class NotesOnce(Listener):
    """Prints a method's notes, those of its first run; what another method has said already is not said again."""

    def __init__(self) -> None:
        """Start with nothing printed."""
        self._printed: set[str] = set()
        self._said: set[str] = set()

    def notes(self, job: Job, notes: Sequence[str]) -> None:
        """Print notes of a method that has not said any yet."""
        method = job.experiment.method.name
        if method not in self._printed:
            self._printed.add(method)
            new = [note for note in notes if note not in self._said]
            self._said.update(new)
            if new:
                print(f"{method}, seed {job.experiment.run.seed}: {' '.join(new)}", file=sys.stderr)


class _SweepProgress(Listener):
    def __init__(self, runs: int, bars: rich_progress.Progress, console: Console) -> None:
        self._runs, self._bars, self._console = runs, bars, console
        self._done, self._said = 0, time.monotonic()
        self._task = bars.add_task("sweep", total=runs, status=f"0 of {runs} runs")

    def tested(self, job: Job, record: Record) -> None:
        self._show(f", round {record.round} of {job.experiment.training.rounds}")

    def finished(self, job: Job, outcome: Outcome) -> None:
        self._done += 1
        self._show("")

    def failed(self, job: Job, reason: str) -> None:
        _print_failure(self._console, job, reason)
        self._done += 1
        self._show("")

    def _show(self, where: str) -> None:
        status = f"{self._done} of {self._runs} runs{where}"
        self._bars.update(self._task, completed=self._done, status=status)
        if not self._console.is_terminal and time.monotonic() - self._said >= PAUSE:
            self._said = time.monotonic()
            print(status, file=sys.stderr, flush=True)


def _print_failure(console: Console, job: Job, reason: str) -> None:
    console.print(f"{job.name}: {reason}", markup=False, highlight=False, soft_wrap=True)


def counted(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Return items one by one, and show how many are done."""
    console = Console(stderr=True)
    return rich_progress.track(items, what, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def watched(
    track: Sequence[str] | None, folder: Path | None, runs: int = 1, *, together: bool = False
) -> Iterator[tuple[Listener, Tracking]]:
    """Show progress, print notes and log to trackers; yields what listens to runs, and the trackers' part of it.

    Runs that train `together` are shown as so many of all, others one by one.
    """
    progress = sweep_progress if together else run_progress
    name_of = (lambda job: job.name) if together else None  # runs of a sweep differ in more than method and seed
    with progress(runs) as shown, tracked(track or (), folder, name_of=name_of) as tracking:
        yield Listeners(shown, tracking, NotesOnce()), tracking


def print_tracking(tracking: Tracking, *, as_json: bool) -> None:
    """Say how to look at what was logged, and which tracker gave up."""
    for trouble in tracking.troubles:
        print(trouble, file=sys.stderr)
    for tracker in tracking.trackers:
        if not as_json:
            print(f"Tracked: {tracker.look}")


def _columns(width: int) -> list[rich_progress.ProgressColumn]:
    """Return what a terminal of that width has room for; the numbers come before the bar."""
    description = rich_progress.TextColumn("{task.description}")
    status = rich_progress.TextColumn("{task.fields[status]}")
    left = [rich_progress.TextColumn("left"), rich_progress.TimeRemainingColumn()]
    if width < WIDE:
        return [description, status, *left]
    bar, elapsed = rich_progress.BarColumn(), rich_progress.TimeElapsedColumn()
    return [rich_progress.SpinnerColumn(), description, bar, status, elapsed, *left]


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar for each stage of a download; yields the function to call with its bytes."""
    console = Console(stderr=True)
    bars = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bars:
        tasks: dict[str, rich_progress.TaskID] = {}

        def listen(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield listen
