"""Compare methods on the same federations: one row per method, mean and spread over seeds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cofair.config.experiment import Experiment
from cofair.config.job import Job, run_name
from cofair.errors import RunError, UsageError
from cofair.results.comparison import Comparison
from cofair.results.listener import Callback, Listener, Listeners, as_listener
from cofair.results.result import Outcome
from cofair.runs.jobs import run_jobs
from cofair.runs.setup import Parts
from cofair.storage.folder import RunFolder, refuse_earlier, write_whole


def compare(
    experiment: Experiment, methods: Sequence[str], seeds: int = 1, out: Path | None = None, *, overwrite: bool = False,
    resume: bool = False, workers: int = 1, load: Sequence[Path] = (), listener: Listener | Callback | None = None,
    parts: Parts | None = None,
) -> Comparison:  # fmt: skip
    """Train every method on the same federations, seeds 0, 1, …; with `out`, a run folder each and the tables.

    The method of the experiment keeps its settings where its name is among those compared. With `resume`, finished runs
    in `out` are kept and interrupted ones resumed. `workers` processes share the runs; `load` names files that register
    methods. Runs that fail are left out of the comparison, and `failures` says why.
    """
    if not methods:
        raise UsageError("Name at least one method to compare.")
    chosen = [experiment.with_method(name).method for name in dict.fromkeys(methods)]
    if out is not None:
        refuse_earlier(out, ("summary.csv", "clients.csv"), overwrite or resume)
    numbers = range(experiment.run.seed, experiment.run.seed + seeds)
    runs = [replace(experiment.with_run(seed=seed), method=method) for seed in numbers for method in chosen]
    jobs = [Job(run, None if out is None else out / run_name(run)) for run in runs]
    for job in jobs:
        if job.folder is not None:
            RunFolder(job.folder, overwrite=overwrite, resume=resume)  # which refuses what it may not replace
    collected, heard = _Collected(), as_listener(listener)
    everybody = collected if heard is None else Listeners(heard, collected)
    run_jobs(
        jobs, everybody, lockstep=False, workers=workers, load=load, parts=parts, overwrite=overwrite, resume=resume
    )
    outcomes = tuple(collected.outcomes[job] for job in jobs if job in collected.outcomes)
    if not outcomes:
        raise RunError(next(iter(collected.failures.values())))
    comparison = Comparison(outcomes, collected.failures)
    if out is not None:
        write_whole(out / "summary.csv", comparison.every_rule().to_csv(index=False))
        write_whole(out / "clients.csv", comparison.clients_frame().to_csv(index=False))
    return comparison


class _Collected(Listener):
    """Collects what runs measured, and why others failed."""

    def __init__(self) -> None:
        self.outcomes: dict[Job, Outcome] = {}
        self.failures: dict[str, str] = {}

    def failed(self, job: Job, reason: str) -> None:
        self.failures[job.name] = reason

    def finished(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job] = outcome
