"""The engine of a real federation: a training is one message to each node, and the nodes' answers.

The loop, the methods and the run folder are those of every other engine. This engine handles only what the network
adds: deadlines, absent nodes, unusable answers, and what each node already holds.
"""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from cofair.engine.problem import Problem
from cofair.engine.protocol import ClientStates, Rewards, Uploads
from cofair.errors import RunError
from cofair.flower import messages, wire
from cofair.flower.flower_settings import Waiting
from cofair.flower.local_training import fingerprint, memory_of, work_text
from cofair.flower.mailbox import exchange
from cofair.flower.remote_federation import identities
from cofair.flower.traffic import Traffic
from cofair.flower.upload_collector import UploadCollector, largest_upload
from cofair.flower.wire import RefusedError

LOG = logging.getLogger("flwr.cofair")


@dataclass(frozen=True)
class HeldModel:
    """What a node holds: a row (D,), its version, and the row after the training whose update the node sent.

    Both rows are zero outside the node's last reward.
    """

    version: str
    row: Tensor
    trained: Tensor | None = None


@dataclass
class GridEngine:
    """Trains clients that are other people's computers."""

    problem: Problem
    grid: Grid
    clients: Sequence[str]  # the identity of each client
    waiting: Waiting
    traffic: Traffic
    trainings: Callable[[int], int] = lambda t: 1  # how many trainings share the time of round t
    head: Callable[[], str] = lambda: ""  # the ledger's hash that every message carries
    _held: dict[int, HeldModel] = field(default_factory=dict)
    _strangers: set[str] = field(default_factory=set)
    _clock: tuple[int, float, int] = (0, 0.0, 0)  # a round, the moment when it ends, its number of trainings so far
    _missed: tuple[int, frozenset[int]] = (0, frozenset())  # a round, and the clients that missed a training of it

    def __post_init__(self) -> None:
        self._model = fingerprint(self.problem)

    def enlarge(self, problem: Problem, clients: Sequence[str]) -> None:
        """Continue with more clients; the earlier ones come first."""
        same = [one == other for one, other in zip(self.clients, clients, strict=False)]
        self._held = {i: held for i, held in self._held.items() if i < len(same) and same[i]}
        self.problem, self.clients = problem, clients

    def begin_round(self, t: int) -> None:
        """Start the time of a round, before its first training."""
        self._clock = (t, time.monotonic() + self.waiting.round_seconds, 0)

    def _until(self, t: int) -> float:
        """Return the deadline of a round's next training: those still to come share the time left equally."""
        if self._clock[0] != t:
            self.begin_round(t)
        _, end, had = self._clock
        self._clock = (t, end, had + 1)
        now = time.monotonic()
        return now + max(end - now, 0.0) / max(self.trainings(t) - had, 1)

    def train(self, rewards: Rewards, states: ClientStates, t: int) -> tuple[Uploads, ClientStates]:
        """Send the rewards and return what came back by the deadline; optimisers' memory stays with the clients."""
        self.problem.check_masks(rewards)
        wanted = self.problem.federation.present(rewards.participants).nonzero().flatten().tolist()
        alone, (last, missed) = rewards.work.phase.alone, self._missed
        # a client that missed one training of a round must not delay the round's next one too
        asked = [i for i in wanted if alone or t != last or i not in missed]
        until = None if alone else self._until(t)
        for number in range(1, self.waiting.tries + 1):
            uploads = self.ask(rewards, asked, t, until if number == 1 else None)
            # who trains alone has a model already, if it is a later stage that nobody answers
            if not asked or bool(uploads.present.any()) or uploads.refused or rewards.work.phase.stage:
                if not alone:
                    silent = {i for i in asked if not bool(uploads.present[i]) and i not in uploads.refused}
                    self._missed = (t, frozenset(silent | (missed if t == last else set())))
                return uploads, states
            LOG.warning("Round %d: nobody answered (%d of %d tries).", t, number, self.waiting.tries)
        raise RunError(
            f"Nobody answered in round {t}, {self.waiting.tries} times within {self.waiting.round_seconds:g} s: "
            "check that the SuperNodes are running."
        )

    def ask(self, rewards: Rewards, asked: Sequence[int], t: int, until: float | None = None) -> Uploads:
        """Send rewards to some clients, once, and return what came back by `until`, by default a round's time."""
        until = time.monotonic() + self.waiting.round_seconds if until is None else until
        scopes = self._scopes(rewards)
        nodes = self._nodes(t)
        while asked and not nodes.keys() & set(asked) and time.monotonic() < until:
            time.sleep(min(self.waiting.poll_seconds, max(until - time.monotonic(), 0.0)))  # the network may come back
            nodes = self._nodes(t)
        left = [i for i in asked if i in nodes]
        for i in set(asked) - set(left):
            LOG.warning("Round %d: client %r is absent.", t, self.problem.federation.names[i])
        uploads = UploadCollector(self.problem, rewards, t)
        for _ in range(2):  # a client that lost what it held is sent the whole model, once
            outgoing = {i: self._message_to(i, nodes[i], rewards, scopes, t) for i in left}
            for i in outgoing:
                self._held.pop(i, None)  # unknown until it answers
            replies = exchange(
                self.grid,
                {i: message for i, (message, _) in outgoing.items()},
                until,
                self.waiting.poll_seconds,
                largest_upload(self.problem),
            )
            lost = []
            for i in left:
                if i not in replies:
                    LOG.warning("Round %d: client %r did not answer in time.", t, self.problem.federation.names[i])
                elif messages.says_lost(replies[i]):
                    lost.append(i)
                else:
                    self._take(i, replies[i], outgoing[i][1], uploads, scopes)
            left = lost
        return uploads.uploads()

    def _nodes(self, t: int) -> dict[int, int]:
        """Return the node of every client that is online."""
        there = identities(self.grid)
        for stranger in there.keys() - set(self.clients) - self._strangers if not self.waiting.newcomers else ():
            LOG.warning(
                "Round %d: %s is new; it came after the start and takes part from the next run on.", t, stranger
            )
            self._strangers.add(stranger)
        return {i: there[identity].node_id for i, identity in enumerate(self.clients) if identity in there}

    def _take(self, i: int, reply: Message, held: HeldModel, uploads: UploadCollector, scopes: Tensor | None) -> None:
        """Take an answer, or refuse it with a reason."""
        self.traffic.received(self.problem.federation.names[i], reply.content)
        try:
            scope = None if scopes is None else scopes[i]
            update = uploads.take(i, reply, self._model, held.version, scope)
        except RefusedError as refusal:
            LOG.warning(
                "Round %d: the answer of client %r is refused: %s.",
                uploads.t,
                self.problem.federation.names[i],
                refusal,
            )
            uploads.refused[i] = str(refusal)
            return
        self._held[i] = HeldModel(held.version, held.row, held.row + wire.within(update, scope))

    def _scopes(self, rewards: Rewards) -> Tensor | None:
        """Return what each client may hold (N, D); None if everybody may hold everything."""
        if rewards.neuron_masks is None or self.problem.neurons is None:
            return None
        return self.problem.neurons.parameter_mask(rewards.neuron_masks)

    def _message_to(
        self, i: int, node: int, rewards: Rewards, scopes: Tensor | None, t: int
    ) -> tuple[Message, HeldModel]:
        """Return the message to client i, and what it will hold once it has it."""
        row = rewards.parameters if rewards.parameters.dim() == 1 else rewards.parameters[i]
        scope = None if scopes is None else scopes[i]
        base, held = self._nearest(i, row, scope)
        start = wire.within(held, scope)
        changed = torch.ones_like(row, dtype=torch.bool) if not base else row != start
        if scope is not None:
            changed &= scope
        arrays = wire.pack(row, changed, scope)
        choices = 0
        if rewards.neuron_masks is not None:
            arrays["neurons"] = wire.bits(rewards.neuron_masks[i])
        if rewards.step_masks is not None and rewards.step_choices is not None:
            choices = int(rewards.step_choices[i])
            arrays["step_masks"] = wire.bits(rewards.step_masks[i, :choices])
        version = secrets.token_hex(8)  # a counter would reveal to a client how many messages others are sent
        content = messages.content(
            {
                "round": t, "work": work_text(rewards.work), "model": self._model, "base": base, "version": version,
                "choices": choices, "memory": memory_of(rewards), "ledger": self.head(),
                "classes": self.problem.federation.classes or 0,
            },
            arrays,
        )  # fmt: skip
        self.traffic.sent(self.problem.federation.names[i], content)
        seconds = 2 * self.waiting.round_seconds  # after that nobody would read an answer
        message = Message(content, node, "train", ttl=seconds, group_id=str(t))
        return message, HeldModel(version, torch.where(changed, row, start))

    def _nearest(self, i: int, row: Tensor, scope: Tensor | None) -> tuple[str, Tensor]:
        """Return what client i holds that is closer to a row: its last model, or that model after its own training."""
        held = self._held.get(i)
        if held is None:
            return "", torch.zeros_like(row)
        options = [(held.version, held.row)]
        if held.trained is not None:
            options.append((held.version + "+", held.trained))
        differing = [wire.count(row != own if scope is None else (row != own) & scope) for _, own in options]
        return options[differing.index(min(differing))]
