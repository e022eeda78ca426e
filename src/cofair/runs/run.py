"""A run: one experiment on one federation, from its first round, or where it was interrupted, to its result."""

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.data.tables import is_table
from cofair.data.tables.table_file import table_digest
from cofair.engine.problem import Engine, Problem
from cofair.engine.protocol import ClientStates, Delivered, Trained, Training
from cofair.methods import Server
from cofair.results.listener import Listener
from cofair.results.record import Record, are_accuracies
from cofair.results.result import Outcome, Result, RewardModels
from cofair.results.tested_round import TestedRound
from cofair.rounds.client_status import ClientStatus
from cofair.runs import loop
from cofair.runs.kept import Kept
from cofair.runs.measurement import Brought, measured, repeats, server_of
from cofair.runs.measurement import notes as measurement_notes
from cofair.runs.setup import Parts, Setup, set_up
from cofair.runs.state import RunState, Stopwatch
from cofair.runs.tally import Tally
from cofair.storage.folder import FORMAT, versions
from cofair.storage.journal import Journal, NoJournal
from cofair.storage.ledger_entries import client_facts


class Run:
    """One run: it knows its experiment, problem, server, state and round.

    Whoever drives it supplies the training: `start` returns the first one that the run waits for, `advance` takes what
    it gave and returns the next, until that is None; then `finish` returns what was measured.
    """

    def __init__(
        self, job: Job, setup: Setup, brought: Brought, *, journal: Journal | None = None,
        listener: Listener | None = None, clock: Callable[[], float] = time.perf_counter,
        newcomers: "Newcomers | None" = None, engine: str | None = None, keeps_models: bool = True,
    ) -> None:  # fmt: skip
        """Take a federation and model that are set up and what everybody brings; compute and write nothing yet.

        `engine` names who trains, where that is not the set-up's own. Without `keeps_models` the run lets go of the
        models that were delivered once they are tested. `state` exists from `start` on.
        """
        self.job, self.experiment = job, job.experiment
        self.setup, self.brought = setup, brought
        self._server = server_of(setup, brought)
        self._journal, self._listener, self._clock, self._newcomers = journal or NoJournal(), listener, clock, newcomers
        self._engine = engine or type(setup.engine).__name__
        self._given = setup.given | {f"method.{name}" for name in job.experiment.method.unwritten()}
        self.fade = self.experiment.participation.fade or 0.0
        self.last_round = self.experiment.method.rounds(self.experiment.training.rounds)
        self.records: list[Record] = []
        self.delivered: Delivered | None = None
        self._ended_before, self._keeps_models = False, keeps_models
        self._known_status: ClientStatus | None = None
        self._rounds: Generator[Training, Trained, None] | None = None  # None before the start

    @property
    def problem(self) -> Problem:
        """Return the model and the federation."""
        return self.setup.problem

    @property
    def engine(self) -> Engine:
        """Return who trains, unless the driver lets another engine train."""
        return self.setup.engine

    @property
    def server(self) -> Server:
        """Return the server, with the contributions that the method uses now."""
        if self._rounds is None:
            return self._server
        if self._known_status is not self.state.status:  # which changes with what clients do
            self._known_status = self.state.status
            self._current = self._server.with_contributions(self.state.status.believed(self.fade))
        return self._current

    @property
    def round(self) -> int:
        """Return the round that the run has completed."""
        return 0 if self._rounds is None else self.state.round

    @property
    def contributions_are_accuracies(self) -> bool:
        """Say whether contributions are accuracies that clients reach alone."""
        return are_accuracies(self.experiment.contribution.measure, self._given)

    def start(self) -> Training | None:
        """Begin, or resume where the journal left off, and return the first training to do."""
        method, server = self.experiment.method, self._server
        self._settings, self._facts = self.experiment.to_toml(self._given), self._known()
        if self._listener is not None and (notes := self._facts.get("notes")):
            self._listener.notes(self.job, notes)
        past = self._journal.begin(
            self.experiment, self.problem, server, self._settings, self._facts, lambda: (RunState, method.start(server))
        )
        self.records += past.records
        brought = past.brought if past.state is None else past.state.status.brought
        if brought is not None and self._newcomers is not None:
            larger = self._newcomers.restored(brought)
            if larger is not None:
                self._enlarge(*larger)
            self._journal.note_clients(self._server)
        self.delivered, self._ended_before = past.delivered, past.delivered is not None
        if self._ended_before:
            return None
        self.state = past.state or RunState(
            0, method.start(server), ClientStates(), Tally.empty(server),
            ClientStatus.at_first(server.contributions, self._compared_with),
            kept=Kept() if self.experiment.run.held else None,
        )  # fmt: skip
        self._watch = Stopwatch(self._clock, self.state.seconds)
        self._rounds = loop.rounds(self)
        return next(self._rounds, None)

    def advance(self, trained: Trained) -> Training | None:
        """Take what a training gave and go to the next one; None where the run has come to its end."""
        assert self._rounds is not None  # it was started
        try:
            return self._rounds.send(trained)
        except StopIteration:
            return None

    def finish(self) -> Outcome:
        """Return what a run measured that has come to its end, and write its summary."""
        federation = self.problem.federation
        outcome = Outcome(
            self.experiment.method.name, self.experiment.run.seed, federation.names, tuple(federation.sizes.tolist()),
            tuple(self._server.contributions.tolist()), tuple(self.records),
            contributions_are_accuracies=self.contributions_are_accuracies,
        )  # fmt: skip
        if not self._ended_before:
            self._journal.finish(outcome.summary(), self.delivered)
        if self._listener is not None:
            self._listener.finished(self.job, outcome)
        return outcome

    def result(self) -> Result:
        """Finish, and return what was measured together with the models."""
        outcome = self.finish()
        assert self.delivered is not None  # the last round is always tested
        models = RewardModels(self.delivered, self.problem)
        facts = self._facts | client_facts(self._server)
        return Result(**vars(outcome), rewards=models, experiment_toml=self._settings, facts=facts)

    def close(self) -> None:
        """Let go of what a run holds that did not come to its end: it waits in a circle that is cleared much later."""
        if self._rounds is not None:
            self._rounds.close()

    # what the loop changes

    def change(self, **parts: Any) -> None:
        """Change parts of the state."""
        self.state = replace(self.state, **parts)

    def seconds(self) -> float:
        """Return how long the run has taken."""
        return self._watch.seconds()

    def admit_newcomers(self, t: int) -> None:
        """Make room for clients that have come before round t; only a real federation has such."""
        arrived = None if self._newcomers is None or t == 1 else self._newcomers.before(self.setup, self._server, t)
        if arrived is None:
            return
        self._enlarge(*arrived)
        self._journal.joined(self._server, t)
        state = self.state
        self.change(
            status=state.status.with_newcomers(self._server.contributions, self._compared_with),
            tally=state.tally.with_newcomers(self._server.clients),
            kept=state.kept and state.kept.with_newcomers(len(state.status.brought), self._server.clients),
        )
        self.change(method=self.experiment.method.welcome(self.server, state.method, t))

    def tested(self, tested: TestedRound) -> None:
        """Keep, write and announce a tested round."""
        self.records.append(tested.record)
        if self._keeps_models:
            self.delivered = tested.delivered
        self._journal.tested(tested)
        if self._listener is not None:
            self._listener.tested(self.job, tested.record)

    def complete(self, t: int) -> None:
        """Complete a round, and write a checkpoint where it is time for one."""
        self.change(round=t, seconds=self.seconds(), last=t == self.last_round)
        self._journal.keep(self.state)

    @property
    def _compared_with(self) -> Tensor | None:
        """Return the models (N, D) that those trained alone later are compared with, where there will be any."""
        return self.brought.alone if repeats(self.setup) else None

    def _enlarge(self, setup: Setup, brought: Brought) -> None:
        self.setup, self.brought = setup, brought
        self._server, self._known_status = server_of(setup, brought), None

    def _known(self) -> dict[str, Any]:
        """Return what a run folder records besides the settings."""
        federation, server, problem = self.problem.federation, self._server, self.problem
        device, attack, data = federation.device, self.setup.attack, self.experiment.federation.data
        notes = [*measurement_notes(self.setup), *self.experiment.method.notes(server)]
        return {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "engine": self._engine,
            "given": sorted(self._given),
            "model": type(problem.layout.prototype).__name__,
            "seed": problem.seed,
            "parameters": problem.layout.size,
            "validation_samples": len(server.validation.samples) if server.has_validation else 0,
            "test_samples": server.tested_on,
            **({"notes": notes} if notes else {}),
            **client_facts(server),
            **({"table_sha256": table_digest(data)} if is_table(data) and "federation" not in self._given else {}),
            **({} if attack is None else {"attackers": [federation.names[i] for i in attack.attackers]}),
        }


class Newcomers(Protocol):
    """Where clients come from that join during a run; only a real federation has such."""

    def before(self, setup: Setup, server: Server, t: int) -> tuple[Setup, Brought] | None:
        """Return the set-up with those who have come before round t, last of all, and what everybody brings."""

    def restored(self, contributions: Tensor) -> tuple[Setup, Brought] | None:
        """Return the set-up with everybody who had come before the run was interrupted; None where nobody had."""


def prepare(
    experiment: Experiment, parts: Parts | None = None, *, journal: Journal | None = None,
    listener: Listener | None = None, folder: Path | None = None,
) -> Run:  # fmt: skip
    """Set up an experiment, measure what everybody brings, and return the run, ready to start."""
    parts = parts or Parts()
    setup = set_up(experiment, parts)
    known, given = parts.contributions, parts.contributions is not None
    if known is None and journal is not None:
        known = journal.contributions
    remembered = journal is not None and journal.has_state
    brought = measured(setup, [experiment.method], known, given=given, remembered=remembered)
    return Run(Job(experiment, folder), setup, brought, journal=journal, listener=listener)


def drive(run: Run) -> Run:
    """Run to the end with the set-up's own engine."""
    try:
        training = run.start()
        while training is not None:
            training = run.advance(run.engine.train(training.rewards, training.clients, training.t))
    finally:
        run.close()
    return run
