"""Runs one after another; those that differ only in their method share the federation and what everybody brings."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cofair.config.job import Job
from cofair.engine import choose
from cofair.errors import RunError, UsageError
from cofair.methods import Method
from cofair.results.listener import Listener
from cofair.runs.measurement import Brought, measured
from cofair.runs.run import Run, drive
from cofair.runs.scheduling import shared_settings
from cofair.runs.setup import Parts, Setup, set_up
from cofair.storage.folder import REWARDS, RunFolder
from cofair.storage.journal import Journal, open_journal
from cofair.storage.resume import finished_outcome


def run_in_turn(
    jobs: Sequence[Job],
    listener: Listener,
    parts: Parts | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> None:
    """Run experiments one after another, each with its own engine; a run that fails does not end the others.

    With `resume`, runs that are finished in their folders are read, and interrupted ones resumed.
    """
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(shared_settings(job.experiment), []).append(job)
    for group in groups.values():
        _SharedFederation(group, listener, parts).run_all(overwrite=overwrite, resume=resume)


class _SharedFederation:
    """The runs of several methods on one federation, which is set up when the first of them needs it."""

    def __init__(self, jobs: Sequence[Job], listener: Listener, parts: Parts | None) -> None:
        self._jobs, self._listener, self._parts = jobs, listener, parts or Parts()
        self._prepared: tuple[Setup, Brought] | None = None
        self._failure: RunError | None = None
        self._known: Tensor | None = self._parts.contributions

    def run_all(self, *, overwrite: bool, resume: bool) -> None:
        folders = {
            job: None if job.folder is None else RunFolder(job.folder, overwrite=overwrite, resume=resume)
            for job in self._jobs
        }
        left = [job for job in self._jobs if not (resume and self._is_finished(job))]
        if left:
            self._listener.preparing(left[0])
        methods = [job.experiment.method for job in left]
        for job in left:
            try:
                self._run(job, folders[job], methods)
            except RunError as error:
                self._listener.failed(job, str(error))

    def _run(self, job: Job, folder: RunFolder | None, methods: Sequence[Method[Any]]) -> None:
        experiment = job.experiment
        journals = open_journal(folder, experiment, keeps_rewards=job.keeps_models)
        with choose.arithmetic(experiment.run.precision), journals as journal:
            setup, brought = self._prepared or self._prepare(job, methods, journal)
            drive(Run(job, setup, brought, journal=journal, listener=self._listener)).finish()

    def _is_finished(self, job: Job) -> bool:
        """Say whether a run is finished in its folder; if it is, pass on what it measured."""
        outcome = None if job.folder is None else finished_outcome(job.folder, job.experiment)
        if outcome is not None:
            if job.keeps_models and not (job.path / REWARDS).exists():
                raise UsageError(
                    f"The run in {job.folder} is finished, and its models were not kept: leave out --keep-models, or "
                    "train it again with --overwrite."
                )
            self._known = torch.tensor(outcome.contributions, dtype=torch.float64)
            self._listener.finished(job, outcome)
        return outcome is not None

    def _prepare(self, job: Job, methods: Sequence[Method[Any]], journal: Journal) -> tuple[Setup, Brought]:
        """Set up and measure once; where that fails, it fails for all runs of the federation."""
        if self._failure is not None:
            raise self._failure
        setup = set_up(job.experiment, self._parts, methods=methods)
        known = self._known if self._known is not None else journal.contributions
        try:
            brought = measured(setup, methods, known, given=self._parts.contributions is not None)
        except RunError as error:
            self._failure = error
            raise
        self._prepared = setup, brought
        return self._prepared
