"""The set-up of a run whose clients are elsewhere: the server's own data and model, and the members."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cofair.config.experiment import Experiment
from cofair.engine.losses import Loss
from cofair.errors import UsageError
from cofair.flower.grid_engine import GridEngine
from cofair.flower.remote_federation import Member, RemoteFederation, read_members, write_members
from cofair.runs.setup import Parts, Setup, set_up


@dataclass(frozen=True)
class RemoteSetups:
    """Makes the set-up of a run for its current members."""

    experiment: Experiment
    own: Setup  # the server's own
    given: frozenset[str]
    loss: Loss | None
    engine: GridEngine
    folder: Path | None

    def of(self, members: Sequence[Member]) -> Setup:
        """Return the set-up of a run with these members."""
        if self.experiment.run.class_weights == "balanced":
            raise UsageError(
                'class_weights = "balanced" is counted on data that participants do not have: give numbers instead.'
            )
        here = self.own.problem.federation
        remote = RemoteFederation(members, here.test, here.validation, here.classes)
        there = self.experiment.with_run(engine="loop")  # it never trains, so any engine will do
        setup = set_up(there, Parts(remote, self.own.problem.layout.prototype, self.loss))
        return replace(setup, experiment=self.experiment, engine=self.engine, given=self.given)

    def members(self) -> list[Member] | None:
        """Return all members before the server was restarted."""
        return None if self.folder is None else read_members(self.folder)

    def write(self, members: Sequence[Member]) -> None:
        """Write who takes part, so that a restarted server knows everybody's place."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_members(self.folder, members)
