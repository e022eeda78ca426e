"""Clients that join during a run: they are asked and measured, and are listed after the others."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from torch import Tensor

from cofair.contributions import find
from cofair.engine.protocol import Trained, Training
from cofair.errors import CofairError
from cofair.flower.enrolment import Question, ask_nodes, sort_members
from cofair.flower.flower_settings import Waiting
from cofair.flower.grid_engine import GridEngine
from cofair.flower.remote_federation import Member, identities
from cofair.flower.remote_setup import RemoteSetups
from cofair.methods import Server
from cofair.runs.measurement import Brought, brought_by
from cofair.runs.setup import Setup
from cofair.runs.training_alone import driven, training_alone

LOG = logging.getLogger("flwr.cofair")


@dataclass
class Newcomers:
    """Looks for new nodes before every round; each is asked and measured at most as often as a training is tried."""

    grid: Grid
    members: list[Member]
    known: Sequence[Member]  # all members before the server was restarted
    question: Question
    waiting: Waiting
    engine: GridEngine
    remote: RemoteSetups
    _asked: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, tuple[Member, int]] = field(
        default_factory=dict
    )  # joined but not measured, and how often tried

    def before(self, setup: Setup, server: Server, t: int) -> tuple[Setup, Brought] | None:
        """Return the set-up with those that came before round t, and what everybody brings; None if nobody came."""
        if not self.waiting.newcomers or setup.experiment.method.needs_alone:  # which was measured at the start only
            return None
        self.engine.begin_round(t)  # newcomers may use up to half of the round's time
        there = identities(self.grid)
        known = {member.identity for member in self.members} | set(self._waiting)
        tries = self.waiting.tries
        self._ask({name: node for name, node in there.items() if name not in known and self._asked[name] < tries})
        ready = sort_members(member for member, _ in self._waiting.values() if member.identity in there)
        if not ready:
            return None
        joined = self._measure(setup, server, ready)
        if joined is not None:
            self.remote.write(self.members)
        return joined

    def restored(self, contributions: Tensor) -> tuple[Setup, Brought] | None:
        """Return the set-up with everybody who had come before the server was restarted; None where nobody had."""
        larger = None
        if len(contributions) > len(self.members):
            self.members[:] = self.known[: len(contributions)]
            setup = self._enlarge(self.members)
            larger = setup, brought_by(setup, None, contributions)
        self.remote.write(self.members)
        return larger

    def _ask(self, new: dict[str, NodeInfo]) -> None:
        """Ask new nodes; one that refuses or is refused does not take part in this run."""
        if not new:
            return
        self._asked.update(list(new))
        until = time.monotonic() + min(self.waiting.newcomer_seconds, self.waiting.round_seconds / 4)
        taken = {member.name for member in self.members} | {member.name for member, _ in self._waiting.values()}
        joining, refused = ask_nodes(self.grid, new, self.question, taken, until, self.waiting.poll_seconds)
        self._asked.update(dict.fromkeys(refused, self.waiting.tries))  # they are not asked again
        self._waiting |= {member.identity: (member, 0) for member in joining}

    def _measure(self, setup: Setup, server: Server, ready: Sequence[Member]) -> tuple[Setup, Brought] | None:
        """Let newcomers train alone, and score what they send; one that sends nothing may try again in later rounds."""
        before = server.clients
        larger = self._enlarge([*self.members, *ready])
        clients = len(larger.problem.federation)
        measure = find(larger.experiment.contribution.measure)
        present = torch.ones(clients, dtype=torch.bool, device=larger.initial.device)
        alone = None
        if measure.needs_training:
            asked = present.clone()
            asked[: before if measure.independent else 0] = False
            until = time.monotonic() + self.waiting.round_seconds / 4
            alone = driven(training_alone(larger, asked), lambda training: self._trained(training, until))
            present = alone.answered
            others = [k for k in range(before) if bool(asked[k]) and int(larger.problem.federation.sizes[k])]
            if not bool(present[others].all()):  # this measure would misjudge newcomers without all the others
                present = torch.zeros_like(present)
        arrived = [member for k, member in enumerate(ready, before) if bool(present[k])]
        self._note_tries(ready, arrived)
        contributions = None
        places = [k for k in range(before, clients) if bool(present[k])]
        if arrived:
            try:
                # a newcomer that diverges does not end the run
                found = brought_by(larger, alone, forgiving=True)
                contributions = torch.cat([server.contributions, found.contributions[places]])
            except CofairError as error:
                LOG.warning("Newcomers could not be measured: %s", error)
        if contributions is None:
            self.engine.enlarge(setup.problem, [member.identity for member in self.members])
            return None
        self.members += arrived
        for member in arrived:
            LOG.info("Client %r has joined and takes part from now on (%s).", member.name, member.identity)
        setup = self._enlarge(self.members)
        brought = brought_by(setup, None, contributions)
        return setup, replace(brought, alone=None if alone is None else alone.models[[*range(before), *places]])

    def _trained(self, training: Training, until: float) -> Trained:
        """Return what a training gave by a moment; after it, nobody is asked."""
        participants = training.rewards.participants
        assert participants is not None  # not all clients are newcomers
        asked = participants.nonzero().flatten().tolist() if time.monotonic() < until else []
        return self.engine.ask(training.rewards, asked, training.t, until), training.clients

    def _note_tries(self, ready: Sequence[Member], arrived: Sequence[Member]) -> None:
        for member in ready:
            _, tries = self._waiting.pop(member.identity)
            if member in arrived:
                continue
            if tries + 1 < self.waiting.tries:
                self._waiting[member.identity] = (member, tries + 1)
            else:
                self._asked[member.identity] = self.waiting.tries  # it had its tries and is not asked again

    def _enlarge(self, members: Sequence[Member]) -> Setup:
        """Make these members known to the engine, and return their set-up."""
        setup = self.remote.of(members)
        self.engine.enlarge(setup.problem, [member.identity for member in members])
        return setup
