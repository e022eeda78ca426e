"""Compare methods on the same federations: one row per method, mean and spread over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.config.job import Job, run_name
from cofair.data.federation import Federation
from cofair.engine.losses import Loss
from cofair.errors import RunError, UsageError
from cofair.results.comparison import Comparison
from cofair.results.listener import Callback, Listener, Listeners, as_listener
from cofair.results.result import Outcome
from cofair.runs.jobs import run_jobs
from cofair.runs.setup import Model, Parts
from cofair.storage.folder import RunFolder, refuse_earlier, write_whole


def compare(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: int = 1,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    workers: int = 1,
    load: Sequence[Path] = (),
    listener: Listener | Callback | None = None,
    federation: Federation | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
    metric: Callable[[Tensor, Tensor], float | Tensor] | None = None,
) -> Comparison:
    """Train several methods on the same federations, for several seeds.

    Args:
        experiment: all other settings. Its own method keeps its settings where its name is among those compared.
        methods: names, as `cofair methods` lists them.
        seeds: number of seeds, counted from the experiment's own.
        out: a folder for the tables, with a run folder for every method and seed.
        overwrite: replace what an earlier comparison left in `out`.
        resume: keep the finished runs in `out`, and resume those that were interrupted.
        workers: processes that share the runs.
        load: Python files that register methods, which workers need as well.
        listener: a function called with the method, the seed and every tested round, or a `Listener`.
        federation: data of your own, instead of the data set that the experiment names.
        model: a model of your own, instead of the one that the experiment names.
        loss: a loss of your own.
        metric: a metric of your own.

    Returns:
        The outcomes of all runs that came to their end; `failures` says why others did not.
    """
    if not methods:
        raise UsageError("Name at least one method to compare.")
    chosen = [experiment.with_method(name).method for name in dict.fromkeys(methods)]
    out = None if out is None else Path(out)
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
        jobs, everybody, lockstep=False, workers=workers, load=load, overwrite=overwrite, resume=resume,
        parts=Parts(federation, model, loss, metric),
    )  # fmt: skip
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
