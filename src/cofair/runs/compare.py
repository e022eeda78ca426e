"""Compare methods on the same federations: one row per method, mean and spread over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.config.job import Job, run_name
from cofair.data.federation import Federation
from cofair.engine.losses import Loss
from cofair.errors import RunError, UsageError, nearest
from cofair.results.comparison import Comparison
from cofair.results.listener import Callback, Listener, Listeners, as_listener
from cofair.runs.jobs import Collected, run_jobs
from cofair.runs.setup import Model, Parts
from cofair.storage import failures
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
    keep_models: bool = False,
    method_settings: Mapping[str, Mapping[str, Any]] | None = None,
    listener: Listener | Callback | None = None,
    federation: Federation | None = None,
    model: Model | None = None,
    loss: str | Loss | None = None,
    metric: str | Callable[[Tensor, Tensor], float | Tensor] | None = None,
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
        keep_models: keep every run's models in its folder, so that `cofair export` can write a client's.
        method_settings: settings of single methods, by their names, such as {"contract": {"kappa": 0.9}}.
        listener: a function called with the method, the seed and every tested round, or a `Listener`.
        federation: data of your own, instead of the data set that the experiment names.
        model: a model of your own, instead of the one that the experiment names.
        loss: a loss by its name, or one of your own.
        metric: a metric by its name, or one of your own.

    Returns:
        The outcomes of all runs that came to their end; `failures` says why others did not.
    """
    if not methods:
        raise UsageError("Name at least one method to compare.")
    if seeds < 1:
        raise UsageError(f"A comparison needs at least one seed, not {seeds}.")
    named = {name: value for name, value in (("loss", loss), ("metric", metric)) if isinstance(value, str)}
    experiment = experiment.with_run(**named)
    own = method_settings or {}
    for name in own:
        if name not in methods:
            raise UsageError(f"There are settings for '{name}', which is not compared: {nearest(name, methods)}")
    chosen = [experiment.with_method(name, own.get(name)).method for name in dict.fromkeys(methods)]
    if keep_models and out is None:
        raise UsageError(
            "Models are kept in run folders: name a folder for the comparison too (--out DIR, in Python out=)."
        )
    out = None if out is None else Path(out)
    if out is not None:
        refuse_earlier(out, ("summary.csv", "clients.csv"), overwrite or resume)
    numbers = range(experiment.run.seed, experiment.run.seed + seeds)
    runs = [replace(experiment.with_run(seed=seed), method=method) for seed in numbers for method in chosen]
    jobs = [Job(run, None if out is None else out / run_name(run), keep_models) for run in runs]
    for job in jobs:
        if job.folder is not None:
            RunFolder(job.folder, overwrite=overwrite, resume=resume)  # which refuses what it may not replace
    collected, heard = Collected(), as_listener(listener)
    run_jobs(
        jobs, collected if heard is None else Listeners(heard, collected), lockstep=False, workers=workers, load=load,
        overwrite=overwrite, resume=resume, parts=Parts(
            federation, model, None if isinstance(loss, str) else loss, None if isinstance(metric, str) else metric
        ),
        then=lambda: _write(_comparison(jobs, collected), out),
    )  # fmt: skip
    comparison = _comparison(jobs, collected)
    if not comparison.outcomes:
        raise RunError(next(iter(collected.failures.values())))
    return comparison


def _comparison(jobs: Sequence[Job], collected: Collected) -> Comparison:
    finished = [job for job in jobs if job in collected.outcomes]
    return Comparison(tuple(collected.outcomes[job] for job in finished), collected.failures, tuple(finished))


def _write(comparison: Comparison, out: Path | None) -> None:
    if out is None:
        return
    failures.write(out, comparison.failures)
    if comparison.outcomes:
        write_whole(out / "summary.csv", comparison.every_rule().to_csv(index=False))
        write_whole(out / "clients.csv", comparison.clients_frame().to_csv(index=False))
