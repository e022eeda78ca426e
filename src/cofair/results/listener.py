"""What listens to runs: progress bars, trackers, a user's own function."""

from collections.abc import Callable, Sequence

from cofair.config.job import Job
from cofair.results.record import Record
from cofair.results.result import Outcome

Callback = Callable[[str, int, Record], None]  # method, seed, tested round


class Listener:
    """Called while runs train; what a subclass does not override is ignored."""

    def preparing(self, job: Job) -> None:
        """A federation is being set up and contributions are being measured."""

    def notes(self, job: Job, notes: Sequence[str]) -> None:
        """A method has notes to print before the first round."""

    def tested(self, job: Job, record: Record) -> None:
        """A round was tested."""

    def failed(self, job: Job, reason: str) -> None:
        """A run has failed; others continue."""

    def finished(self, job: Job, outcome: Outcome) -> None:
        """A run has finished."""


class Listeners(Listener):
    """Several listeners as one."""

    def __init__(self, *listeners: "Listener | Callback") -> None:
        """Pass on to these, in order; functions are called with tested rounds."""
        self._listeners = [each if isinstance(each, Listener) else CallbackListener(each) for each in listeners]

    def preparing(self, job: Job) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.preparing(job)

    def notes(self, job: Job, notes: Sequence[str]) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.notes(job, notes)

    def tested(self, job: Job, record: Record) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.tested(job, record)

    def failed(self, job: Job, reason: str) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.failed(job, reason)

    def finished(self, job: Job, outcome: Outcome) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.finished(job, outcome)


class CallbackListener(Listener):
    """A user's function, called with the method, the seed and each tested round."""

    def __init__(self, callback: Callback) -> None:
        """Take the function."""
        self._callback = callback

    def tested(self, job: Job, record: Record) -> None:
        """Call it with the record."""
        self._callback(job.experiment.method.name, job.experiment.run.seed, record)


def as_listener(listener: Listener | Callback | None) -> Listener | None:
    """Return a listener, whether given as one or as a function."""
    return listener if listener is None or isinstance(listener, Listener) else CallbackListener(listener)
