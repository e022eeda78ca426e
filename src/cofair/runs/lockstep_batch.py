"""Runs in lockstep: one step trains the clients of all of them. They share data, model and memory."""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from cofair.config.job import Job
from cofair.data import datasets
from cofair.data.build import Pool
from cofair.engine import choose
from cofair.engine.lockstep import Lockstep, Request
from cofair.engine.protocol import Trained, Training
from cofair.errors import CofairError
from cofair.results.listener import Listener, Listeners
from cofair.runs.measurement import Brought, measuring
from cofair.runs.run import Run
from cofair.runs.scheduling import most_rows, shared_settings
from cofair.runs.setup import Setup, set_up
from cofair.storage.folder import RunFolder
from cofair.storage.journal import FolderJournal, Journal, NoJournal
from cofair.storage.resume import holds_same, holds_same_finished

Prepared = dict[Job, tuple[Setup, Brought]]


def run_in_lockstep(jobs: Sequence[Job], listener: Listener, workers: int = 1) -> None:
    """Run experiments that share data and model in lockstep, in parts that fit in memory, and write their folders.

    `workers` processes share the device. Where memory runs out all the same, runs continue in parts half as large.
    """
    ended = _Ended()
    listener = Listeners(listener, ended)
    run = jobs[0].experiment.run
    with choose.arithmetic(run.precision):
        device, dtype = choose.device(run.device), choose.dtype(run.precision)
        own = jobs[0].experiment.federation
        pool = _pool(own.data, device, dtype, own.resize)
        left, most = list(jobs), len(jobs)
        while left:
            size = set_up(left[0].experiment, pool=pool).problem.layout.size
            if device.type == "cuda":  # what is cached and not in use counts as taken where memory is measured
                torch.cuda.empty_cache()
            part: list[Job] = []
            rows = 0
            fits = most_rows(size, device, workers, held=any(job.experiment.run.held for job in left))
            while left and len(part) < most and (not part or rows + left[0].experiment.federation.clients <= fits):
                rows += left[0].experiment.federation.clients
                part.append(left.pop(0))
            try:
                run_together(part, pool, listener)
            except torch.OutOfMemoryError:
                if len(part) == 1:  # one run must have enough
                    raise
                most = len(part) // 2
                left = [job for job in part if job not in ended.jobs] + left
                warnings.warn(
                    f"Memory ran out with {len(part)} runs at once: they continue {most} at a time.", stacklevel=2
                )


class _Ended(Listener):
    """Remembers which runs have ended, well or not."""

    def __init__(self) -> None:
        self.jobs: set[Job] = set()

    def failed(self, job: Job, reason: str) -> None:
        self.jobs.add(job)

    def finished(self, job: Job, outcome: object) -> None:
        self.jobs.add(job)


@lru_cache(maxsize=1)
def _pool(data: str, device: torch.device, dtype: torch.dtype, resize: int | None) -> Pool:
    """Return a data set on a device; the last one is kept, since most batches of a sweep share it."""
    return Pool.of(datasets.load(data), device, dtype, resize)


def run_together(jobs: Sequence[Job], pool: Pool, listener: Listener, trainer: type[Lockstep] = Lockstep) -> None:
    """Run some experiments in lockstep, all at once, from their contributions to their last round."""
    journals = {job: journal for job in jobs if (journal := _journal(job, len(jobs), listener)) is not None}
    clock = _shared_clock(len(jobs))
    start = partial(Run, listener=listener, clock=clock, engine=Lockstep.__name__, keeps_models=False)
    runs = {
        k: start(job, *prepared, journal=journals[job])
        for k, (job, prepared) in enumerate(_prepared(journals, pool, listener).items())
    }
    if not runs:
        return
    lockstep = trainer([run.problem for run in runs.values()])
    waiting = {k: _next(run, listener, run.start) for k, run in runs.items()}
    try:
        while asked := {k: training for k, training in waiting.items() if training is not None}:
            for k in runs.keys() - asked.keys():  # what has ended holds models that others need the memory of
                runs.pop(k).close()
            requests = [Request(k, training.rewards, training.clients, training.t) for k, training in asked.items()]
            answers = dict(zip(asked, lockstep.train(requests), strict=True))
            waiting = {k: _next(runs[k], listener, partial(runs[k].advance, answers.pop(k))) for k in asked}
    finally:
        for run in runs.values():
            run.close()


def _next(run: Run, listener: Listener, step: Callable[[], Training | None]) -> Training | None:
    """Return the next training that a run waits for; None where it has ended or failed, which ends only this run."""
    try:
        training = step()
        if training is None:
            run.finish()
        return training
    except CofairError as error:
        listener.failed(run.job, str(error))
        return None


def _journal(job: Job, runs: int, listener: Listener) -> Journal | None:
    """Return where a run is written; None where that cannot be."""
    if job.folder is None:
        return NoJournal()
    resume = holds_same(job.folder, job.experiment) and not holds_same_finished(job.folder, job.experiment)
    folder = RunFolder(job.folder, overwrite=True, resume=resume)
    try:
        return FolderJournal(folder, job.experiment, None, hashes_rewards=False, announced=False, runs=runs)
    except CofairError as error:
        listener.failed(job, str(error))
        return None


def _prepared(journals: dict[Job, Journal], pool: Pool, listener: Listener) -> Prepared:
    """Set up every run; those that differ only in their method share the set-up and what everybody brings.

    Runs whose clients cannot be measured, because training alone diverges, fail here.
    """
    shared: dict[str, list[Job]] = {}
    known: dict[str, Tensor] = {}
    for job, journal in journals.items():
        shared.setdefault(shared_settings(job.experiment), []).append(job)
        if journal.contributions is not None:
            known[shared_settings(job.experiment)] = journal.contributions
    methods = {key: [job.experiment.method for job in own] for key, own in shared.items()}
    setups = {key: set_up(own[0].experiment, methods=methods[key], pool=pool) for key, own in shared.items()}
    found: Prepared = {}
    waiting: dict[str, Training] = {}
    asking = {key: measuring(setup, methods[key], known.get(key)) for key, setup in setups.items()}

    def advance(key: str, trained: Trained | None) -> None:
        try:
            waiting[key] = next(asking[key]) if trained is None else asking[key].send(trained)
        except StopIteration as done:
            found.update(dict.fromkeys(shared[key], (setups[key], done.value)))
        except CofairError as error:
            for job in shared[key]:
                listener.failed(job, str(error))

    for key in asking:
        advance(key, None)
    lockstep = Lockstep([setups[key].problem for key in waiting]) if waiting else None
    places = {key: k for k, key in enumerate(waiting)}
    while lockstep is not None and waiting:
        asked, requests = (
            list(waiting),
            [Request(places[key], one.rewards, one.clients, one.t) for key, one in waiting.items()],
        )
        waiting.clear()
        for key, trained in zip(asked, lockstep.train(requests), strict=True):
            advance(key, trained)
    return found


def _shared_clock(count: int) -> Callable[[], float]:
    """Return a clock that gives each of several runs its share of the time they spend together."""
    return lambda: time.perf_counter() / count
