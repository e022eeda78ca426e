"""Clients that join while a run goes on: they are asked, measured, and take the next places."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from torch import Tensor

from cofair.errors import CofairError
from cofair.flower.enrolment import Question, answers, in_order
from cofair.flower.flower_settings import Waiting
from cofair.flower.grid_engine import GridEngine
from cofair.flower.remote_federation import Member, identities
from cofair.runs.setup import Prepared, measure_contributions

LOG = logging.getLogger("flwr.cofair")
NEEDS_NO_TRAINING = ("size", "diversity", "entropy")
_BY_ITSELF = ("standalone", *NEEDS_NO_TRAINING)  # measures by which a client is judged without the others


@dataclass
class Newcomers:
    """Looks before every round who is new; each is asked, and measured, as often as a training is tried at most.

    `prepared_for(members)` sets up the run for these members, `told(prepared, members, t)` is called when some have
    joined before round t, and with None when a run goes on.
    """

    grid: Grid
    members: list[Member]
    known: Sequence[Member]  # everybody who took part before the server was restarted
    question: Question
    waiting: Waiting
    engine: GridEngine
    prepared_for: Callable[[Sequence[Member]], Prepared]
    told: Callable[[Prepared, list[Member], int | None], None]
    _asked: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, tuple[Member, int]] = field(default_factory=dict)  # joined, not measured: and how often tried

    def before(self, prepared: Prepared, t: int) -> Prepared | None:
        """Return the run with those who have come before round t, or None."""
        if not self.waiting.newcomers:
            return None
        self.engine.begin_round(t)  # what newcomers take, half of it at most, the round's training does not have
        there = identities(self.grid)
        known = {member.identity for member in self.members} | set(self._waiting)
        tries = self.waiting.tries
        self._ask({name: node for name, node in there.items() if name not in known and self._asked[name] < tries})
        ready = in_order(member for member, _ in self._waiting.values() if member.identity in there)
        if not ready:
            return None
        joined = self._measured(prepared, ready)
        if joined is None:
            return None
        self.told(joined, self.members, t)
        return joined

    def restored(self, prepared: Prepared, brought: Tensor) -> Prepared:
        """Return the run with everybody who had come before the server was restarted."""
        if len(brought) > len(self.members):
            self.members[:] = self.known[: len(brought)]
            prepared = self._enlarged(brought)
        self.told(prepared, self.members, None)
        return prepared

    def _ask(self, new: dict[str, NodeInfo]) -> None:
        """Ask who is new; whoever refuses or is refused does not take part in this run."""
        if not new:
            return
        self._asked.update(list(new))
        until = time.monotonic() + min(self.waiting.newcomer_seconds, self.waiting.round_seconds / 4)
        taken = {member.name for member in self.members} | {member.name for member, _ in self._waiting.values()}
        joining, refused = answers(self.grid, new, self.question, taken, until, self.waiting.poll_seconds)
        self._asked.update(dict.fromkeys(refused, self.waiting.tries))  # they are not asked again
        self._waiting |= {member.identity: (member, 0) for member in joining}

    def _measured(self, prepared: Prepared, ready: Sequence[Member]) -> Prepared | None:
        """Let newcomers train alone and score what they send; who sends nothing may try again before later rounds."""
        before = prepared.server.clients
        larger = self._prepared_for([*self.members, *ready])
        measure = larger.experiment.contribution.measure
        present = torch.ones(larger.server.clients, dtype=torch.bool, device=larger.server.initial.device)
        if measure not in NEEDS_NO_TRAINING:
            asked = range(before if measure in _BY_ITSELF else 0, larger.server.clients)
            self.engine.enlarge(larger.problem, [member.identity for member in [*self.members, *ready]])
            larger.server.forgives = True  # one newcomer that diverges does not end the run
            uploads = self.engine.asked(larger.alone, asked, 1, time.monotonic() + self.waiting.round_seconds / 4)
            larger.server.take_alone(uploads)
            present = uploads.present
            others = [k for k in asked if k < before and int(larger.server.sizes[k])]
            if not bool(present[others].all()):  # judged together with those who are there, it would be judged wrongly
                present = torch.zeros_like(present)
        arrived = [member for k, member in enumerate(ready, before) if bool(present[k])]
        self._tried(ready, arrived)
        brought = None
        if arrived:
            try:
                measure_contributions(larger)
                places = [k for k in range(before, larger.server.clients) if bool(present[k])]
                new = larger.server.contributions[places]
                brought = torch.cat([prepared.server.contributions, new])
            except CofairError as error:
                LOG.warning("Newcomers could not be measured: %s", error)
        if brought is None:
            self.engine.enlarge(prepared.problem, [member.identity for member in self.members])
            return None
        self.members += arrived
        for member in arrived:
            LOG.info("Client %r has come and takes part from now on (%s).", member.name, member.identity)
        return self._enlarged(brought)

    def _tried(self, ready: Sequence[Member], arrived: Sequence[Member]) -> None:
        for member in ready:
            _, tries = self._waiting.pop(member.identity)
            if member in arrived:
                continue
            if tries + 1 < self.waiting.tries:
                self._waiting[member.identity] = (member, tries + 1)
            else:
                self._asked[member.identity] = self.waiting.tries  # it had its chances, and is not asked again

    def _enlarged(self, brought: Tensor) -> Prepared:
        """Return the run of all members, with what they brought."""
        prepared = self._prepared_for(self.members)
        prepared.server.contributions = brought.to(prepared.server.initial.device)
        self.engine.enlarge(prepared.problem, [member.identity for member in self.members])
        return prepared

    def _prepared_for(self, members: Sequence[Member]) -> Prepared:
        return replace(self.prepared_for(members), arrivals=self)
