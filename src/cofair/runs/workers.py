"""Several processes that share the batches of a sweep, and one GPU: while one decides, another trains."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from cofair.errors import RunError
from cofair.results.record import Record
from cofair.runs.sweep import Job, Told, batches, check, run_batch
from cofair.storage.lock import locked

_POLL = 0.5  # seconds between two looks whether a worker is still alive


def run_jobs(jobs: Sequence[Job], told: Told, *, workers: int = 1, load: Sequence[Path] = ()) -> None:
    """Run jobs in lockstep, in this process or in several; `load` names files that register methods."""
    check(jobs)
    if not jobs:
        return
    parts = batches(jobs, workers)
    with ExitStack() as held:
        for folder in sorted({job.folder.parent for job in jobs}):  # one lock for all runs, as files may be scarce
            held.enter_context(locked(folder))
        if workers == 1 or len(parts) == 1:
            for part in parts:
                run_batch(part, told)
        else:
            _share(parts, min(workers, len(parts)), told, load)


@dataclass(frozen=True)
class _News:
    """What a worker tells: of which job, a tested round or why it failed; without a job, that a batch broke off."""

    job: int | None
    record: Record | None
    failure: str | None


def _share(parts: Sequence[Sequence[Job]], workers: int, told: Told, load: Sequence[Path]) -> None:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    news: Queue[_News] = context.Queue()
    waiting: Queue[Any] = context.Queue()
    jobs = [job for part in parts for job in part]
    numbers = iter(range(len(jobs)))
    for part in parts:
        waiting.put([(next(numbers), job) for job in part])
    for _ in range(workers):
        waiting.put(None)
    given = (waiting, news, tuple(load), workers)
    team = [context.Process(target=_work, args=given, daemon=True) for _ in range(workers)]
    for member in team:
        member.start()
    broken: list[str] = []
    try:
        while any(member.is_alive() for member in team) or not news.empty():
            try:
                heard = news.get(timeout=_POLL)
            except Empty:
                continue
            if heard.job is None:
                broken.append(heard.failure or "")
            else:
                told(jobs[heard.job], heard.record, heard.failure)
    finally:
        for member in team:
            member.terminate()
            member.join()
    lost = [member for member in team if member.exitcode not in (0, -signal.SIGTERM)]
    if broken or lost:
        raise RunError(
            broken[0]
            if broken
            else "A process of the sweep was killed; start it again to go on (cofair sweep: with --resume)."
        )


def _work(waiting: "Queue[Any]", news: "Queue[_News]", load: tuple[Path, ...], workers: int) -> None:
    """Take batch after batch until none is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from cofair.methods import load_file, load_installed

    torch.set_num_threads(1)
    load_installed()
    for file in load:
        load_file(file)
    while (part := waiting.get()) is not None:
        try:
            run_batch([job for _, job in part], _teller(part, news), workers)
        except Exception as error:  # whatever ends a batch is told by the parent
            news.put(_News(None, None, f"A batch of the sweep broke off: {error}"))


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, killed or not: nobody would hear of its work."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _teller(part: Sequence[tuple[int, Job]], news: "Queue[_News]") -> Told:
    numbers = {job.folder: number for number, job in part}

    def tell(job: Job, record: Record | None, failure: str | None) -> None:
        news.put(_News(numbers[job.folder], record, failure))

    return tell
