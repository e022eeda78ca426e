"""What a run writes while it runs (history, ledger and checkpoints), and how it resumes from them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.engine.problem import Problem
from cofair.engine.protocol import Delivered
from cofair.errors import RunError
from cofair.methods import Server
from cofair.results.record import Record
from cofair.results.tested_round import TestedRound
from cofair.storage import checkpoint, ledger, ledger_entries, tensor_file
from cofair.storage.agreement import checked_against_ledger
from cofair.storage.checkpoint import Checkpoints, Resumable
from cofair.storage.folder import FILES, REWARDS, RunFolder, explaining_write_errors, refuse_earlier, sync_folder
from cofair.storage.history import read_history
from cofair.storage.ledger import Ledger
from cofair.storage.ledger_entries import CHAIN, client_facts
from cofair.storage.lock import locked
from cofair.storage.resume import first_entry, is_finished, note_clients, note_resumption, refuse_other
from cofair.storage.tensor_file import Shelf, TensorFile


@dataclass(frozen=True)
class Past:
    """What exists of a run: its tested rounds, the state it resumes from (None: its start), and what it ended with."""

    records: list[Record] = field(default_factory=list)
    state: Any = None
    delivered: Delivered | None = None
    brought: Tensor | None = None  # by all clients, if the run has ended


class Journal(Protocol):
    """Where a run writes while it runs."""

    @property
    def contributions(self) -> Tensor | None:
        """Return what every client brings, if that was measured before the run was interrupted."""

    @property
    def has_state(self) -> bool:
        """Say whether the run resumes from what it had reached, and not from its start."""

    @property
    def head(self) -> str:
        """Return the hash of the ledger that participants may rely on; empty if there is none."""

    def begin(
        self, experiment: Experiment, problem: Problem, server: Server, settings: str, facts: dict[str, Any],
        template: Callable[[], Any],
    ) -> Past:  # fmt: skip
        """Start the run, or find where it resumes; `template` has the classes that its state consists of."""

    def joined(self, server: Server, t: int) -> None:
        """Write which clients joined, as the last ones, before round t."""

    def note_clients(self, server: Server, t: int | None = None) -> None:
        """Note who takes part; new clients joined before round t."""

    def tested(self, tested: TestedRound) -> None:
        """Write a tested round."""

    def keep(self, state: Resumable) -> None:
        """Write a checkpoint if one is due."""

    def finish(self, summary: dict[str, Any], delivered: Delivered | None = None) -> None:
        """Write the summary of a complete run and, if they are kept, its models."""


class NoJournal:
    """The journal of a run without a folder."""

    contributions = None
    has_state = False
    head = ""

    def begin(self, *given: object) -> Past:
        """Start with no past."""
        return Past()

    def joined(self, server: Server, t: int) -> None:
        """Write nothing."""

    def note_clients(self, server: Server, t: int | None = None) -> None:
        """Write nothing."""

    def tested(self, tested: TestedRound) -> None:
        """Write nothing."""

    def keep(self, state: Resumable) -> None:
        """Write nothing."""

    def finish(self, summary: dict[str, Any], delivered: Delivered | None = None) -> None:
        """Write nothing."""


@contextmanager
def open_journal(
    folder: RunFolder | None, experiment: Experiment, *, keeps_rewards: bool = False, announced: bool = True
) -> Iterator[Journal]:
    """Hold a run's folder, if it has one, until the run ends, however it ends."""
    with ExitStack() as locks:
        if folder is None:
            yield NoJournal()
        else:
            yield FolderJournal(folder, experiment, locks, keeps_rewards=keeps_rewards, announced=announced)


class FolderJournal:
    """Writes one run to its folder."""

    def __init__(
        self, folder: RunFolder, experiment: Experiment, locks: ExitStack | None, *, keeps_rewards: bool = False,
        hashes_rewards: bool = True, announced: bool = True, runs: int = 1,
    ) -> None:  # fmt: skip
        """Take a folder; if its run is to be resumed, read its first entry.

        Without `locks`, the caller already holds the folder. If rounds are `announced`, the disk has each of them
        before anybody hears of it. Where nobody has a reward to compare, the ledger needs no hashes of them
        (`hashes_rewards`), which can cost more than training. `runs` counts the runs that share the process.
        """
        self._folder, self._locks, self._keeps_rewards = folder, locks, keeps_rewards
        self._hashes_rewards, self._announced = hashes_rewards, announced
        self._checkpoints = Checkpoints(folder.path, experiment.run.checkpoint_every, runs)
        self._ledger = Ledger(folder.ledger)
        self._checkpoint_head = self._ledger.head
        self._first_entry: ledger.LedgerEntry | None = None
        if folder.resume:
            self._hold()
            self._first_entry = first_entry(folder.path, experiment)

    def _hold(self) -> None:
        if self._locks is not None:
            self._locks.enter_context(locked(self._folder.path))

    @property
    def contributions(self) -> Tensor | None:
        """Return what every client brings, if that was measured before the run was interrupted."""
        return (
            None if self._first_entry is None else torch.tensor(self._first_entry["contributions"], dtype=torch.float64)
        )

    @property
    def has_state(self) -> bool:
        """Say whether the run resumes from what it had reached, and not from its start."""
        path = self._folder.path
        return self._first_entry is not None and (checkpoint.exists(path) or is_finished(path))

    @property
    def head(self) -> str:
        """Return the hash of the ledger that participants are sent: with it they can prove that entries were changed.

        It is that of the last checkpoint. When a run resumes there, real clients may answer differently, and what is
        written after it may differ: nobody should take that for forgery. The disk has it before it is sent.
        """
        self._folder.sync()
        return self._checkpoint_head if self._checkpoints.any else self._ledger.head

    def begin(
        self, experiment: Experiment, problem: Problem, server: Server, settings: str, facts: dict[str, Any],
        template: Callable[[], Any],
    ) -> Past:  # fmt: skip
        """Start the run, or find where it resumes."""
        self._server, self._start = server, ledger_entries.of_start(experiment, problem, server, settings, facts)
        if self._first_entry is not None:
            refuse_other(self._folder.path, self._first_entry, self._start)
            # participants may hold its hash, so it stays the same wherever the run resumes
            self._start = {key: value for key, value in self._first_entry.items() if key not in CHAIN}
            self._folder.tidy()
            if is_finished(self._folder.path):
                return self._finished()
            found = checkpoint.latest(self._folder.path)
            if found is not None:
                return self._resume(found, facts, template)
            self._folder.restart(facts, ledger.line_of(self._first_entry))
            self._ledger.resume_from([self._first_entry])
        else:
            if not self._folder.resume:
                self._hold()
                refuse_earlier(self._folder.path, FILES, self._folder.overwrite)  # another run may have been faster
            self._folder.begin(settings, facts)
            self._ledger = Ledger(self._folder.ledger)
            self._ledger.add(self._start)
        self._checkpoint_head = self._ledger.head
        return Past()

    def _resume(self, found: TensorFile, facts: dict[str, Any], template: Callable[[], Any]) -> Past:
        """Return to a checkpoint: what came after it is cut off and will be written again."""
        if found.facts.get("start") != self._start:
            raise RunError(
                f"{found.path} is the checkpoint of another run: delete it, or start over in another folder."
            )
        state = found.value(template(), self._server.initial.device)
        self._folder.history.cut(found.facts["history"])
        self._folder.ledger.cut(found.facts["ledger"])
        self._ledger.resume_from(ledger.verified_entries(self._folder.ledger.path))
        self._checkpoint_head = self._ledger.head
        note_resumption(self._folder.path, state.round, facts)
        return Past(self._records(), state)

    def _finished(self) -> Past:
        """Return the past of a run that has ended."""
        self._checkpoints.remove()  # the process may have been killed before it did so
        path = self._folder.path / REWARDS
        if not path.exists():
            raise RunError(
                f"{self._folder.path} holds a finished run whose models were not kept (comparisons and sweeps keep "
                "none), so there is nothing to resume; 'cofair report' shows its results."
            )
        audit = checked_against_ledger(self._folder.path)
        delivered = TensorFile(path).value(Delivered, self._server.initial.device)
        later = [value for entry in audit.entries if "joined" in entry for value in entry["joined"]["contributions"]]
        brought = torch.tensor([*audit.entries[0]["contributions"], *later], dtype=torch.float64)
        return Past(self._records(), None, delivered, brought)

    def _records(self) -> list[Record]:
        path = self._folder.history.path
        return read_history(path) if path.exists() else []

    def joined(self, server: Server, t: int) -> None:
        """Write which clients joined, as the last ones, before round t."""
        self._ledger.add({"round": t - 1, "joined": client_facts(server, self._server.clients)})
        self.note_clients(server, t)

    def note_clients(self, server: Server, t: int | None = None) -> None:
        """Write into run.json who takes part; clients that are new there joined before round t."""
        self._server = server
        note_clients(self._folder.path, client_facts(server), t)

    def tested(self, tested: TestedRound) -> None:
        """Write a tested round to the ledger and to the history.

        The ledger comes first, so that a history never shows what its ledger does not say.
        """
        self._ledger.add(
            ledger_entries.of_round(tested, hashes_rewards=self._hashes_rewards, keeps_rewards=self._keeps_rewards)
        )
        if self._announced:
            self._folder.ledger.sync()
        self._folder.record(tested.record)
        if self._announced:
            self._folder.history.sync()

    def keep(self, state: Resumable) -> None:
        """Write a checkpoint if one is due."""
        if state.round == 1 and self._checkpoints.any:
            shelf = Shelf()
            tensor_file.encode(state, shelf)  # a state that cannot be stored fails now, not after hours
            self._checkpoints.expect(sum(tensor.nbytes for tensor in shelf.tensors.values()))
        if self._checkpoints.due(state):
            marks = {"history": self._folder.history.mark(), "ledger": self._folder.ledger.mark()}
            self._checkpoints.write({"start": self._start, **marks}, state)
            self._checkpoint_head = self._ledger.head

    def finish(self, summary: dict[str, Any], delivered: Delivered | None = None) -> None:
        """Write the summary of a complete run and, if they are kept, its models; the disk has all else before."""
        self._folder.sync()
        if self._keeps_rewards and delivered is not None:
            path = self._folder.path / REWARDS
            with explaining_write_errors(self._folder.path):
                temporary = path.with_name(f".{REWARDS}.tmp")
                tensor_file.write(temporary, {"round": self._server.rounds}, delivered)
                temporary.replace(path)
                sync_folder(self._folder.path)
        self._folder.finish({**summary, "ledger": self._ledger.head})
        self._checkpoints.remove()
