"""Many runs, in one process or shared by several: what comparisons, sweeps and reproductions have in common."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from cofair.config.job import Job
from cofair.data import datasets
from cofair.data.tables import is_table
from cofair.engine import choose
from cofair.errors import RunError, UsageError
from cofair.results.listener import Listener
from cofair.results.result import Outcome
from cofair.runs import workers as processes
from cofair.runs.in_turn import run_in_turn
from cofair.runs.lockstep_batch import run_in_lockstep
from cofair.runs.scheduling import batches
from cofair.runs.setup import Parts
from cofair.storage.lock import locked
from cofair.storage.resume import holds_other, holds_same_finished

_NAMED = 10  # runs that did not finish; a sentence has no room for more


def run_jobs(
    jobs: Sequence[Job], listener: Listener, *, lockstep: bool, workers: int = 1, load: Sequence[Path] = (),
    parts: Parts | None = None, overwrite: bool = False, resume: bool = False, then: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Run jobs in lockstep or in turn, in this process or in several; `load` names files that register methods.

    `then` is called while the folders are still locked, to write tables of what was measured.
    """
    if workers < 1:
        raise UsageError(f"There must be at least one worker, not {workers}.")
    if lockstep:
        check_lockstep(jobs)
    if workers > 1 and parts is not None and parts.names:
        raise UsageError(
            f"Several workers need an experiment that names everything, but {', '.join(sorted(parts.names))} was given "
            "in Python: leave workers at 1."
        )
    divided = batches(jobs, workers) if lockstep or workers > 1 else [list(jobs)]
    with ExitStack() as locks:
        # one lock for all runs of a sweep, as open files may be scarce
        for folder in sorted({job.folder.parent for job in jobs if job.folder is not None}):
            locks.enter_context(locked(folder))
        if workers > 1 and len(divided) > 1:
            way = processes.Way(lockstep, overwrite, resume, min(workers, len(divided)), tuple(load))
            processes.share(divided, way, listener)
        else:
            for batch in filter(None, divided):
                if lockstep:
                    run_in_lockstep(batch, listener)
                else:
                    run_in_turn(batch, listener, parts, overwrite=overwrite, resume=resume)
        if then is not None:
            then()


class Collected(Listener):
    """Collects what runs measured, and why others failed."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.outcomes: dict[Job, Outcome] = {}
        self.failures: dict[str, str] = {}

    def failed(self, job: Job, reason: str) -> None:
        """Keep why a run failed."""
        self.failures[job.name] = reason

    def finished(self, job: Job, outcome: Outcome) -> None:
        """Keep what a run measured."""
        self.outcomes[job] = outcome


def unfinished(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs whose folders hold no finished run of the very same experiment."""
    return [job for job in jobs if job.folder is None or not holds_same_finished(job.folder, job.experiment)]


def all_done(jobs: Sequence[Job]) -> None:
    """Say which jobs did not finish, if any; the reasons were reported when they failed."""
    raise_if_missing([job.name for job in unfinished(jobs)], len(jobs))


def raise_if_missing(missing: Sequence[str], count: int) -> None:
    """Say which of so many runs did not finish, if any."""
    if missing:
        names = ", ".join(missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise RunError(f"{len(missing)} of {count} runs did not finish, for the reasons above: {names}{more}.")


def check_lockstep(jobs: Sequence[Job]) -> None:
    """Refuse what cannot run in lockstep, before anything is computed."""
    folders = [job.folder for job in jobs if job.folder is not None]
    for job in jobs:
        if job.experiment.run.engine == "loop":
            raise UsageError("A sweep trains in lockstep: leave run.engine at auto, or use 'cofair run' for the loop.")
        if job.folder is not None and holds_other(job.folder, job.experiment):
            raise UsageError(
                f"{job.folder} holds a run with other settings: name another folder (--out), or delete this one."
            )
    if len(set(folders)) < len(folders):
        raise UsageError("Two experiments of the sweep would write to one folder.")
    for data in sorted({job.experiment.federation.data for job in jobs}):
        if is_table(data):
            raise UsageError(f"A sweep trains on data sets that have a name, not on {data}: use 'cofair compare'.")
        datasets.path(data)
    for device in sorted({job.experiment.run.device for job in jobs}):
        choose.device(device)
