"""What is written of a run while it runs: history, ledger and checkpoints, and how a run resumes from them."""

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
from cofair.storage.agreement import agreed
from cofair.storage.checkpoint import Checkpoints, Resumable
from cofair.storage.folder import FILES, REWARDS, RunFolder, explaining_write_errors, refuse_earlier, settle
from cofair.storage.history import read_history
from cofair.storage.ledger import Ledger
from cofair.storage.ledger_entries import CHAIN, known_of
from cofair.storage.lock import locked
from cofair.storage.resume import begun, is_finished, note_clients, note_resumption, refuse_other
from cofair.storage.tensor_file import Shelf, TensorFile


@dataclass(frozen=True)
class Past:
    """What there is of a run: the tested rounds, the state it resumes from (None: its start), what it ended with."""

    records: list[Record] = field(default_factory=list)
    state: Any = None
    delivered: Delivered | None = None
    brought: Tensor | None = None  # by all clients, of a run that has ended


class Journal(Protocol):
    """What a run tells while it runs."""

    @property
    def contributions(self) -> Tensor | None:
        """Return what everybody brings, where that was measured before the run was interrupted."""

    @property
    def head(self) -> str:
        """Return the hash of the ledger that participants may rely on; empty where there is none."""

    def begin(
        self, experiment: Experiment, problem: Problem, server: Server, settings: str, facts: dict[str, Any],
        template: Callable[[], Any],
    ) -> Past:  # fmt: skip
        """Begin the run, or see where it resumes; `template` has the classes that its state consists of."""

    def joined(self, server: Server, t: int) -> None:
        """Write who has joined before round t, after all others."""

    def note_clients(self, server: Server, t: int | None = None) -> None:
        """Note who takes part; those who are new have joined before round t."""

    def tested(self, tested: TestedRound) -> None:
        """Write a tested round."""

    def keep(self, state: Resumable) -> None:
        """Write a checkpoint where it is time for one."""

    def finish(self, summary: dict[str, Any], delivered: Delivered | None = None) -> None:
        """Write the summary of a complete run and, where they are kept, its models."""


class NoJournal:
    """The journal of a run that has no folder."""

    contributions = None
    head = ""

    def begin(self, *given: object) -> Past:
        """Begin at the start."""
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
def opened(
    folder: RunFolder | None, experiment: Experiment, *, keeps_rewards: bool = False, announced: bool = True
) -> Iterator[Journal]:
    """Hold a run's folder, if it has one, until the run ends, however it may end."""
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
        """Take a folder; where its run is to be resumed, see what there is.

        Without `locks` somebody else holds the folder. Where rounds are `announced`, the disk has each of them before
        anybody hears of it. Where nobody has a reward that could be compared, the ledger needs no hashes of them, which
        can cost more than training. So many `runs` share the process.
        """
        self._folder, self._locks, self._keeps_rewards = folder, locks, keeps_rewards
        self._hashes_rewards, self._announced = hashes_rewards, announced
        self._checkpoints = Checkpoints(folder.path, experiment.run.checkpoint_every, runs)
        self._ledger = Ledger(folder.ledger)
        self._settled = self._ledger.head
        self._first: ledger.Entry | None = None
        if folder.resume:
            self._hold()
            self._first = begun(folder.path, experiment)

    def _hold(self) -> None:
        if self._locks is not None:
            self._locks.enter_context(locked(self._folder.path))

    @property
    def contributions(self) -> Tensor | None:
        """Return what everybody brings, where that was measured before the run was interrupted."""
        return None if self._first is None else torch.tensor(self._first["contributions"], dtype=torch.float64)

    @property
    def head(self) -> str:
        """Return the hash of the ledger that participants are sent: with it they can prove later changes before it.

        It is that of the last checkpoint. When a run resumes there, real clients may answer differently than before,
        and what was written after it may differ: nobody shall take that for forgery. The disk has it before it is sent.
        """
        self._folder.sync()
        return self._settled if self._checkpoints.any else self._ledger.head

    def begin(
        self, experiment: Experiment, problem: Problem, server: Server, settings: str, facts: dict[str, Any],
        template: Callable[[], Any],
    ) -> Past:  # fmt: skip
        """Begin the run, or see where it resumes."""
        self._server, self._start = server, ledger_entries.of_start(experiment, problem, server, settings, facts)
        if self._first is not None:
            refuse_other(self._folder.path, self._first, self._start)
            # whoever was told its hash shall find it again, wherever the run goes on
            self._start = {key: value for key, value in self._first.items() if key not in CHAIN}
            self._folder.tidy()
            if is_finished(self._folder.path):
                return self._ended()
            found = checkpoint.latest(self._folder.path)
            if found is not None:
                return self._resume(found, facts, template)
            self._folder.begin_again(facts, ledger.line_of(self._first))
            self._ledger.go_on([self._first])
        else:
            if not self._folder.resume:
                self._hold()
                refuse_earlier(self._folder.path, FILES, self._folder.overwrite)  # another may have been faster
            self._folder.begin(settings, facts)
            self._ledger = Ledger(self._folder.ledger)
            self._ledger.add(self._start)
        self._settled = self._ledger.head
        return Past()

    def _resume(self, found: TensorFile, facts: dict[str, Any], template: Callable[[], Any]) -> Past:
        """Return to a checkpoint: what came after it is cut off, to be written once more."""
        if found.facts.get("start") != self._start:
            raise RunError(
                f"{found.path} is the checkpoint of another run: delete it, or begin again in another folder."
            )
        state = found.value(template(), self._server.initial.device)
        self._folder.history.cut(found.facts["history"])
        self._folder.ledger.cut(found.facts["ledger"])
        self._ledger.go_on(ledger.verified(self._folder.ledger.path))
        self._settled = self._ledger.head
        note_resumption(self._folder.path, state.round, facts)
        return Past(self._records(), state)

    def _ended(self) -> Past:
        """Return what a run ended with."""
        self._checkpoints.remove()  # the process may have been killed before it did
        path = self._folder.path / REWARDS
        if not path.exists():
            raise RunError(
                f"{self._folder.path} holds a finished run whose models were not kept (comparisons and sweeps keep "
                "none): there is nothing to resume; 'cofair report' shows it."
            )
        audit = agreed(self._folder.path)
        delivered = TensorFile(path).value(Delivered, self._server.initial.device)
        later = [value for entry in audit.entries if "joined" in entry for value in entry["joined"]["contributions"]]
        brought = torch.tensor([*audit.entries[0]["contributions"], *later], dtype=torch.float64)
        return Past(self._records(), None, delivered, brought)

    def _records(self) -> list[Record]:
        path = self._folder.history.path
        return read_history(path) if path.exists() else []

    def joined(self, server: Server, t: int) -> None:
        """Write who has joined before round t, after all others."""
        self._ledger.add({"round": t - 1, "joined": known_of(server, self._server.clients)})
        self.note_clients(server, t)

    def note_clients(self, server: Server, t: int | None = None) -> None:
        """Write into run.json who takes part; those who are new there have joined before round t."""
        self._server = server
        note_clients(self._folder.path, known_of(server), t)

    def tested(self, tested: TestedRound) -> None:
        """Write a tested round to the ledger and to the history.

        The ledger comes first, so that a history never shows what no ledger says.
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
        """Write a checkpoint where it is time for one."""
        if state.round == 1 and self._checkpoints.any:
            shelf = Shelf()
            tensor_file.encode(state, shelf)  # what cannot be stored is told now, not after hours
            self._checkpoints.expect(sum(tensor.nbytes for tensor in shelf.tensors.values()))
        if self._checkpoints.due(state):
            marks = {"history": self._folder.history.mark(), "ledger": self._folder.ledger.mark()}
            self._checkpoints.write({"start": self._start, **marks}, state)
            self._settled = self._ledger.head

    def finish(self, summary: dict[str, Any], delivered: Delivered | None = None) -> None:
        """Write the summary of a complete run and, where they are kept, its models; the disk has all else first."""
        self._folder.sync()
        if self._keeps_rewards and delivered is not None:
            path = self._folder.path / REWARDS
            with explaining_write_errors(self._folder.path):
                temporary = path.with_name(f".{REWARDS}.tmp")
                tensor_file.write(temporary, {"round": self._server.rounds}, delivered)
                temporary.replace(path)
                settle(self._folder.path)
        self._folder.finish({**summary, "ledger": self._ledger.head})
        self._checkpoints.remove()
