"""What stands between a method and the clients: who is handed a reward, whose upload counts, who is measured anew."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.contributions import measure
from cofair.engine.problem import Engine, Problem
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.errors import UsageError
from cofair.methods import Server
from cofair.rounds import upload_checks
from cofair.rounds.attacks import Attack
from cofair.rounds.client_status import Standing
from cofair.rounds.defences import defended
from cofair.rounds.participation import Participation
from cofair.scoring.scorer import Scorer


@dataclass(frozen=True)
class Prepared:
    """What all methods of one seed share: the problem, who trains, who tests, what everybody brings."""

    experiment: Experiment
    problem: Problem
    engine: Engine
    tester: Scorer
    server: Server
    given: frozenset[str]  # what did not come from the experiment's settings
    alone: Rewards  # what clients are handed to train by themselves
    participation: Participation
    attack: Attack | None = None
    arrivals: "Arrivals | None" = None

    def handed(self, rewards: Rewards, standing: Standing, t: int) -> Rewards:
        """Return a method's rewards, handed only to who takes part in the round and was not removed."""
        removed = self.experiment.defence.threshold is not None
        return self.participation.limited(rewards, t, standing.members if removed else None)

    def received(
        self, rewards: Rewards, uploads: Uploads, standing: Standing, delivered: Callable[[], Delivered], t: int
    ) -> tuple[Uploads, Standing]:
        """Return the uploads that the method may learn from: those that pass the door, as defences leave them."""
        uploads = upload_checks.admitted(rewards, uploads, self.problem.layout)
        standing = standing.after(uploads, self.server, t)
        if not rewards.work.phase.uploads:
            return uploads, standing
        return defended(self.experiment.defence, uploads, standing, delivered, t)

    def measures_again(self, t: int) -> bool:
        """Tell whether contributions are measured anew before round t."""
        every = self.experiment.contribution.every
        return every is not None and t > 1 and (t - 1) % every == 0

    def alone_again(self, standing: Standing, t: int) -> Rewards:
        """Return what clients are handed to train by themselves once more, those who take part in round t."""
        return self.handed(replace(self.alone, work=self.alone.work.again_in(t)), standing, t)

    def measured_again(self, standing: Standing, uploads: Uploads) -> Standing:
        """Return how clients stand after they trained alone once more; who did not answer stands as before."""
        judge = copy.copy(self.server)
        judge.forgives = True  # one client that diverges does not end a run that is under way
        judge.take_alone(uploads)
        asked = uploads.present & standing.members
        fresh = measured_by(self.experiment, judge, self.tester)
        return replace(standing, contributions=torch.where(asked, fresh, standing.contributions))


class Arrivals(Protocol):
    """Where clients come from that join while a run goes on; only a real federation has such."""

    def before(self, prepared: Prepared, t: int) -> Prepared | None:
        """Return what is prepared with those who have come before round t, after all others, and what they bring."""

    def restored(self, prepared: Prepared, brought: Tensor) -> Prepared:
        """Return what is prepared with everybody who had come before the run was interrupted, and what they brought."""


def measured_by(experiment: Experiment, server: Server, tester: Scorer) -> Tensor:
    """Return what everybody brings (N,), measured as the experiment says."""
    wanted = experiment.contribution
    found = checked(measure(wanted.measure, wanted.on, server, tester, wanted.permutations), server)
    if server.unmeasured is None:
        return found
    return torch.where(server.unmeasured, found.min(), found)  # who cannot be measured brings least


def checked(contributions: Tensor, server: Server) -> Tensor:
    """Return contributions as methods read them, or say what is wrong with them."""
    if contributions.shape != (server.clients,) or not bool(torch.isfinite(contributions).all()):
        raise UsageError(f"Contributions must be {server.clients} finite numbers, one a client.")
    return contributions.to(device=server.initial.device, dtype=torch.float64)
