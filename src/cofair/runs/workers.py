"""Several processes that share batches of runs, and one GPU: while one decides, another trains."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any, Literal

import torch

from cofair.config.job import Job
from cofair.errors import CofairError, RunError, UsageError
from cofair.results.listener import Listener
from cofair.results.record import Record
from cofair.results.result import Outcome
from cofair.runs.in_turn import run_in_turn
from cofair.runs.lockstep_batch import run_in_lockstep

_POLL = 0.5  # seconds between two checks whether a worker is still alive


@dataclass(frozen=True)
class Way:
    """How workers run their batches."""

    lockstep: bool
    overwrite: bool
    resume: bool
    workers: int
    load: tuple[Path, ...]  # files that register methods


@dataclass(frozen=True)
class _News:
    """What a worker reports: an event of a listener, of which job, and what it is about; or why a batch broke off."""

    event: Literal["preparing", "notes", "tested", "failed", "finished", "broken", "refused"]
    job: int | None
    what: Any = None


def share(batches: Sequence[Sequence[Job]], way: Way, listener: Listener) -> None:
    """Run batches in several processes; the listener hears of all their runs."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    news: Queue[_News] = context.Queue()
    waiting: Queue[Any] = context.Queue()
    jobs = [job for batch in batches for job in batch]
    numbers = iter(range(len(jobs)))
    for batch in batches:
        waiting.put([(next(numbers), job) for job in batch])
    for _ in range(way.workers):
        waiting.put(None)
    team = [context.Process(target=_work, args=(waiting, news, way), daemon=True) for _ in range(way.workers)]
    for member in team:
        member.start()
    broken: list[CofairError] = []
    try:
        while any(member.is_alive() for member in team) or not news.empty():
            try:
                heard = news.get(timeout=_POLL)
            except Empty:
                continue
            if heard.job is None:
                broken.append(UsageError(heard.what) if heard.event == "refused" else RunError(heard.what))
            else:
                _pass_on(heard, jobs[heard.job], listener)
    finally:
        for member in team:
            member.terminate()
            member.join()
    if broken:
        raise broken[0]
    if any(member.exitcode not in (0, -signal.SIGTERM) for member in team):
        raise RunError("A worker process was killed; start the command again with --resume to continue.")


def _pass_on(heard: _News, job: Job, listener: Listener) -> None:
    if heard.event == "preparing":
        listener.preparing(job)
    else:
        getattr(listener, heard.event)(job, heard.what)


def _work(waiting: "Queue[Any]", news: "Queue[_News]", way: Way) -> None:
    """Take batch after batch until none is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from cofair.methods import load_file, load_installed

    torch.set_num_threads(1)
    load_installed()
    for file in way.load:
        load_file(file)
    while (batch := waiting.get()) is not None:
        listener = _Reporter({job: number for number, job in batch}, news)
        jobs = [job for _, job in batch]
        try:
            if way.lockstep:
                run_in_lockstep(jobs, listener, way.workers)
            else:
                run_in_turn(jobs, listener, overwrite=way.overwrite, resume=way.resume)
        except UsageError as error:
            news.put(_News("refused", None, str(error)))
        except Exception as error:  # whatever ends a batch is reported by the parent
            news.put(_News("broken", None, f"A batch of runs broke off: {error}"))


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, killed or not: nobody would hear of its work."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Reporter(Listener):
    """Reports what happens in a worker to its parent."""

    def __init__(self, numbers: dict[Job, int], news: "Queue[_News]") -> None:
        self._numbers, self._news = numbers, news

    def preparing(self, job: Job) -> None:
        self._news.put(_News("preparing", self._numbers[job]))

    def notes(self, job: Job, notes: Sequence[str]) -> None:
        self._news.put(_News("notes", self._numbers[job], list(notes)))

    def tested(self, job: Job, record: Record) -> None:
        self._news.put(_News("tested", self._numbers[job], record))

    def failed(self, job: Job, reason: str) -> None:
        self._news.put(_News("failed", self._numbers[job], reason))

    def finished(self, job: Job, outcome: Outcome) -> None:
        self._news.put(_News("finished", self._numbers[job], outcome))
