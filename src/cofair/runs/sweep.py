"""Sweeps: many experiments in lockstep, so that one step trains the clients of all of them.

Experiments that share data and model are run as one batch, as many at once as fit in memory. Each has a run folder of
its own; what is finished there is not computed again, so that a sweep can be interrupted and continued.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.data import datasets
from cofair.data.build import DEFAULT_SAMPLES, WHOLE_POOL, Pool
from cofair.data.datasets import catalogue
from cofair.engine import choose
from cofair.engine.lockstep import Lockstep, Request
from cofair.engine.protocol import ClientStates, Uploads
from cofair.errors import CofairError, RunError, UsageError
from cofair.results.result import Outcome
from cofair.runs.loop import Tested, Trained, Training, going
from cofair.runs.run import facts, outcome_of
from cofair.runs.setup import Prepared, measure_contributions, set_up
from cofair.storage.folder import RunFolder
from cofair.storage.history import Record
from cofair.storage.journal import Journal
from cofair.storage.resume import holds_other, same_begun, same_finished

COPIES = 8  # of all clients' parameters: handed out, trained, uploaded, a method's own
HELD = 2  # more of them on a GPU, where recorded steps keep what they change and what they need
_NOTHING = ClientStates()
_NEED_NO_TRAINING = ("size", "diversity", "entropy")
_FIXED = 1.5  # of a run: what a batch costs however few runs it has, as training alone and starting every step
_NAMED = 10  # runs that did not finish; a sentence has no room for more
_TURNS = 3  # batches for each worker: fewer, and some wait long for the last one


@dataclass(frozen=True)
class Job:
    """One experiment of a sweep, and the folder that its run is written to."""

    experiment: Experiment
    folder: Path


Told = Callable[[Job, Record | None, str | None], None]  # a tested round, or (None, why it failed)


def unfinished(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs whose folders hold no finished run of the very same experiment."""
    return [job for job in jobs if not same_finished(job.folder, job.experiment)]


def all_done(jobs: Sequence[Job]) -> None:
    """Say which jobs did not finish, if any; why was told when it happened."""
    if missing := unfinished(jobs):
        names = ", ".join(job.folder.name for job in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise RunError(f"{len(missing)} of {len(jobs)} runs did not finish, for the reasons above: {names}{more}.")


def batches(jobs: Sequence[Job], workers: int = 1) -> list[list[Job]]:
    """Divide jobs into batches that run in lockstep: alike in data and model, costly ones first.

    Several workers get a few batches each, so that none waits long for the last one. Runs of one federation share what
    everybody does alone and stay together, unless workers would be idle for longer than doing that again takes.
    """
    groups: dict[str, dict[str, list[Job]]] = {}
    for job in jobs:
        federations = groups.setdefault(_alike(job.experiment), {})
        federations.setdefault(_setting(job.experiment), []).append(job)
    whole, parts = _division(sum(map(len, groups.values())), len(jobs), workers)
    enough = sum(map(_cost, jobs)) / (_TURNS * workers)
    found: list[list[Job]] = []
    for federations in groups.values():
        found.append([])
        for _, own in sorted(federations.items()):
            count, whole = (1, whole - 1) if whole else (min(parts, len(own)), 0)
            for part in ([own[i] for i in range(first, len(own), count)] for first in range(count)):
                full = bool(found[-1]) and (count > 1 or sum(map(_cost, found[-1])) >= enough)
                if workers > 1 and full:
                    found.append([])
                found[-1] += part
    return sorted(found, key=lambda batch: -sum(map(_cost, batch)))


def _division(federations: int, jobs: int, workers: int) -> tuple[int, int]:
    """Return how many federations stay whole, and in how many parts to divide each of the others.

    Every worker gets as many whole ones as the others; the rest is divided so that the last worker is done soonest.
    """
    turns, rest = divmod(federations, workers)
    runs = jobs / max(1, federations)

    def longest(parts: int) -> float:
        return math.ceil(parts * rest / workers) * (runs / parts + _FIXED)

    return turns * workers, min(range(1, math.ceil(runs) + 1), key=longest, default=1)


def _cost(job: Job) -> float:
    """Return how many samples of local training a run has, a measure of how long it takes."""
    own, work = job.experiment.federation, job.experiment.training.work()
    rounds = 1 if job.experiment.method.name == "standalone" else job.experiment.training.rounds
    if work.epochs is None:
        return float(rounds * own.clients * (work.steps or 0) * work.batch_size)
    every = catalogue.find(own.data).variants[0].train * (1 - own.validation)
    each = own.samples or (every if own.scene in WHOLE_POOL else DEFAULT_SAMPLES)
    return rounds * work.epochs * min(every, own.clients * each)


def run_batch(jobs: Sequence[Job], told: Told, workers: int = 1) -> None:
    """Run experiments that are alike in lockstep, in parts that fit in memory, and write their folders.

    `workers` processes share the device. Where memory runs out all the same, runs go on in parts half as large.
    """
    failed: set[Path] = set()

    def told_too(job: Job, record: Record | None, failure: str | None) -> None:
        if failure is not None:
            failed.add(job.folder)
        told(job, record, failure)

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
            fits = _most_rows(size, device, workers)
            while left and len(part) < most and (not part or rows + left[0].experiment.federation.clients <= fits):
                rows += left[0].experiment.federation.clients
                part.append(left.pop(0))
            if not _fitted(part, pool, told_too):
                most = len(part) // 2
                left = [job for job in unfinished(part) if job.folder not in failed] + left
                warnings.warn(
                    f"Memory ran out with {len(part)} runs at once: they go on {most} at a time.", stacklevel=2
                )


def _fitted(part: Sequence[Job], pool: Pool, told: Told) -> bool:
    """Run some experiments in lockstep; tell whether memory was enough for several, since one run must have enough."""
    try:
        _run_part(part, pool, told)
    except torch.OutOfMemoryError:
        if len(part) == 1:
            raise
        return False
    return True


@lru_cache(maxsize=1)
def _pool(data: str, device: torch.device, dtype: torch.dtype, resize: int | None) -> Pool:
    """Return a data set on a device; the last one is kept, since most batches of a sweep share it."""
    return Pool.of(datasets.load(data), device, dtype, resize)


def _run_part(jobs: Sequence[Job], pool: Pool, told: Told) -> None:
    """Run some experiments in lockstep from their contributions to their last round."""
    begun = [(job, journal) for job in jobs if (journal := _journal(job, len(jobs), told)) is not None]
    if begun:
        _in_lockstep([job for job, _ in begun], [journal for _, journal in begun], pool, told)


def _journal(job: Job, runs: int, told: Told) -> Journal | None:
    """Return what writes a job's run, which goes on where it was interrupted; None where it cannot."""
    goes_on = same_begun(job.folder, job.experiment) and not same_finished(job.folder, job.experiment)
    folder = RunFolder(job.folder, overwrite=True, resume=goes_on)
    try:
        return Journal(folder, job.experiment, None, hashes_rewards=False, runs=runs)
    except CofairError as error:
        told(job, None, str(error))
        return None


def _in_lockstep(jobs: Sequence[Job], journals: Sequence[Journal], pool: Pool, told: Told) -> None:
    ready = _prepared(jobs, journals, pool, told)
    clock = _shared_clock(len(jobs))
    runs, waiting = [], {}
    for job, journal in zip(jobs, journals, strict=True):
        if job.folder in ready:
            runs.append(_Going(job, journal, ready[job.folder], clock, told))
            waiting[len(runs) - 1] = runs[-1].go_on(None)
    if not runs:
        return
    lockstep = Lockstep([run.prepared.problem for run in runs])
    try:
        while asked := {k: training for k, training in waiting.items() if training is not None}:
            requests = [Request(k, training.rewards, training.clients, training.t) for k, training in asked.items()]
            answers = _trained(lockstep, requests, [run.prepared for run in runs])
            waiting = {k: runs[k].go_on(answer) for k, answer in zip(asked, answers, strict=True)}
    finally:
        for run in runs:
            run.close()


def _trained(lockstep: Lockstep, requests: Sequence[Request], runs: Sequence[Prepared]) -> list[Trained]:
    """Return what each training gave, as the attackers of its run change it."""
    return [
        answer if (attack := runs[asked.run].attack) is None
        else attack.act(asked.rewards, asked.states, asked.t, answer)
        for asked, answer in zip(requests, lockstep.train(requests), strict=True)
    ]  # fmt: skip


def _prepared(jobs: Sequence[Job], journals: Sequence[Journal], pool: Pool, told: Told) -> dict[Path, Prepared]:
    """Set up every run; those that differ only in their method share federation, server and contributions.

    Runs whose clients cannot be measured, since training alone diverges, are told and left out.
    """
    shared: dict[str, list[Job]] = {}
    measured: dict[str, Tensor] = {}
    for job, journal in zip(jobs, journals, strict=True):
        shared.setdefault(_setting(job.experiment), []).append(job)
        if journal.contributions is not None:
            measured[_setting(job.experiment)] = journal.contributions
    ready = {
        key: set_up(own[0].experiment, methods=[job.experiment.method for job in own], pool=pool)
        for key, own in shared.items()
    }
    untrained = {
        key: one for key, one in ready.items()
        if (one.experiment.contribution.measure not in _NEED_NO_TRAINING and key not in measured)
        or any(job.experiment.method.name == "standalone" for job in shared[key])
    }  # fmt: skip
    alone: dict[str, Uploads] = {}
    if untrained:
        asked = [Request(k, one.alone, _NOTHING, 1) for k, one in enumerate(untrained.values())]
        answers = _trained(Lockstep([one.problem for one in untrained.values()]), asked, list(untrained.values()))
        alone = {key: uploads for key, (uploads, _) in zip(untrained, answers, strict=True)}
    found: dict[Path, Prepared] = {}
    for key, one in ready.items():
        try:
            if key in alone:
                one.server.take_alone(alone[key])
            measure_contributions(one, measured.get(key))
        except CofairError as error:
            for job in shared[key]:
                told(job, None, str(error))
        else:
            found |= {job.folder: replace(one, experiment=job.experiment) for job in shared[key]}
    return found


class _Going:
    """One run of a batch, driven from training to training."""

    def __init__(self, job: Job, journal: Journal, prepared: Prepared, clock: Callable[[], float], told: Told) -> None:
        self._job, self._journal, self.prepared, self._told = job, journal, prepared, told
        self._records: list[Record] = []
        self._run = self._begun(clock)

    def _begun(self, clock: Callable[[], float]) -> Generator[Training | Tested, Trained | None, None]:
        """Begin, or go on, when the run is first driven, so that what is wrong there ends only this run."""
        experiment, prepared = self._job.experiment, self.prepared
        past = self._journal.begin(prepared, experiment.to_toml(), facts(prepared, Lockstep.__name__))
        self._records += past.records
        yield from going(experiment.method, prepared, clock, begun=past.position, keep=self._journal.keep)

    def close(self) -> None:
        """Let go of what the run holds, models above all: it waits in a circle that would be cleared much later."""
        self._run.close()

    def go_on(self, trained: Any) -> Training | None:
        """Go on to the next training that this run waits for; None where it has ended or failed."""
        try:
            event = self._run.send(trained)
            while isinstance(event, Tested):
                self._records.append(event.record)
                self._journal.tested(event)
                self._told(self._job, event.record, None)
                event = next(self._run)
            return event
        except StopIteration:
            outcome: Outcome = outcome_of(self._job.experiment, self.prepared, self._records)
            self._journal.finish(outcome.summary())
        except CofairError as error:  # one run that diverges does not end the others
            self._told(self._job, None, str(error))
        return None


def _alike(experiment: Experiment) -> str:
    """Return what runs of one batch share."""
    tables = experiment.to_dict()
    run = {key: tables["run"][key] for key in ("device", "precision", "metric", "loss")}
    federation = {key: tables["federation"][key] for key in ("data", "resize")}
    return json.dumps([federation, tables["model"], run], sort_keys=True)


def _setting(experiment: Experiment) -> str:
    """Return everything that decides a run except its method."""
    tables = {name: table for name, table in experiment.to_dict().items() if name != "method"}
    return json.dumps(tables, sort_keys=True)


def _most_rows(size: int, device: torch.device, workers: int) -> int:
    """Return how many clients of a model of that size fit in memory at once, on a GPU in a worker's share of it."""
    space, copies = 4.0 * 2**30, COPIES
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        space, copies = min(free, whole / workers), COPIES + HELD
    return max(1, int(0.6 * space / (4 * copies * size)))


def _shared_clock(count: int) -> Callable[[], float]:
    """Return a clock that gives each of several runs its share of the time they spend together."""
    return lambda: time.perf_counter() / count


def check(jobs: Sequence[Job]) -> None:
    """Refuse what cannot run in lockstep, before anything is computed."""
    for job in jobs:
        if job.experiment.run.engine == "loop":
            raise UsageError("A sweep trains in lockstep: leave run.engine at auto, or use 'cofair run' for the loop.")
        if holds_other(job.folder, job.experiment):
            raise UsageError(
                f"{job.folder} holds a run with other settings: name another folder (--out), or delete this one."
            )
    if len({job.folder for job in jobs}) < len(jobs):
        raise UsageError("Two experiments of the sweep would write to one folder.")
    for data in sorted({job.experiment.federation.data for job in jobs}):
        datasets.path(data)
    for device in sorted({job.experiment.run.device for job in jobs}):
        choose.device(device)
