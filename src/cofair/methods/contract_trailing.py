"""Contract with trailing models: each client has a whole model of its own, which follows the server's at a distance.

What a client was never sent it cannot keep. A model that is a row of old and new entries, of which the client has seen
no newer ones, is all that it holds; its validation accuracy is what is calibrated. No neurons need to be known.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.rules.aggregation import mean_over_holders
from cofair.methods.rules.refreshing import Refreshed, Search, drawn_for, priorities, refreshed
from cofair.methods.server import Server
from cofair.models.blocks import Blocks
from cofair.scoring.mixtures import Mixtures
from cofair.scoring.scorer import Scorer

_GAINS_ON = 500  # validation samples, at most: it only has to be seen which way a client's training goes
_FIRST, _LEAST = 0.5, 2**-10  # shares of what differs that a search starts from: the first, and the least
_FOR_NEWCOMERS = 8  # halvings, at least: they are owed in one round what others got in many

if TYPE_CHECKING:
    from cofair.methods.contract import Contract


@dataclass(frozen=True)
class Trailing:
    """The server's model (D,), the clients' (N, D), and of each client (N,) the accuracies promised and validated.

    `gain` (N,) is by how much a client's own training made its model better when its turn was last: what could be made
    of it. `share` (N,) of what differed from the server's fitted then. `download` (N,) is the share of a model that
    changed in each client's.
    """

    parameters: Tensor
    models: Tensor
    promised: Tensor
    validated: Tensor
    gain: Tensor
    share: Tensor
    download: Tensor


@dataclass(frozen=True)
class TrailingModels(Method[Trailing]):
    """Models that are as accurate as a contract promises, and stay so for a client that keeps all it was handed."""

    name: ClassVar[str] = "contract"
    paper: ClassVar[str] = "our own"

    contract: "Contract" = field(kw_only=True)

    def start(self, server: Server) -> Trailing:
        """Hand out the initial model, which everybody knows."""
        nothing = torch.zeros_like(server.contributions)
        models = server.initial.repeat(server.clients, 1)
        validated = self._scorer(server).score(server.initial[None]).metric.to(nothing).expand_as(nothing)
        return Trailing(server.initial, models, nothing, validated, nothing, nothing + _FIRST, nothing)

    def rewards(self, server: Server, state: Trailing, t: int, phase: Phase) -> Rewards:
        """Hand out each client's own model; only what changed in it travels."""
        return Rewards(state.models, server.work, download=state.download)

    def learn(
        self, server: Server, state: Trailing, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> Trailing:
        """Move the server's model by the updates, then let the clients' follow."""
        if not bool(uploads.present.any()):
            return replace(state, download=torch.zeros_like(state.download))
        mean = mean_over_holders(uploads, None, "mask", server.aggregation, self.weights(server, state, t))
        asked = rewards.participants if rewards.participants is not None else torch.ones_like(uploads.present)
        silent = asked & ~uploads.present & (server.sizes > 0).to(asked.device)
        turn = ((server.places() + t) % self.contract.every == 0).to(silent.device)
        moved = replace(state, parameters=state.parameters + mean)
        return self.follow(server, moved, t, uploads.updates, turn & ~silent, silent)

    def weights(self, server: Server, state: Trailing, t: int) -> Tensor | None:
        """Return what updates weigh (N,): by contribution, and less the further behind a client's model is."""
        weights = self.contract.weights(server)
        most = state.validated.max()
        if t == 1 or not self.contract.freshness:
            return weights
        near = (state.validated / most.clamp(min=torch.finfo(most.dtype).tiny)).clamp(0, 1) ** self.contract.freshness
        return near if weights is None else near * weights

    def follow(self, server: Server, state: Trailing, t: int, updates: Tensor, due: Tensor, silent: Tensor) -> Trailing:
        """Bring the models of clients whose turn it is (N,) closer to the server's.

        While the whole model is no better than a client's promise, all of it is for that client. Who was asked for an
        update and is silent (N,) gets nothing.
        """
        whole = state.parameters
        accuracy = self._scorer(server).score(whole[None]).metric[0].to(state.promised)
        promised = self.promised(server, float(accuracy))
        young = (promised >= accuracy) & ~silent
        turns = (due & ~young).nonzero().flatten()
        gains = self.gains(server, state, updates, turns)
        found = self.closer(server, state, t, promised, gains, turns)
        models = torch.where(young[:, None], whole, state.models.index_copy(0, turns, found.models))
        return Trailing(
            whole, models, promised,
            validated=torch.where(young, accuracy, state.validated.index_copy(0, turns, found.accuracies)),
            gain=state.gain.index_copy(0, turns, gains),
            share=torch.where(young, _FIRST, state.share.index_copy(0, turns, found.shares.clamp(min=_LEAST))),
            download=(models != state.models).sum(1).to(promised) / len(whole),
        )  # fmt: skip

    def closer(
        self, server: Server, state: Trailing, t: int, promised: Tensor, gains: Tensor, turns: Tensor
    ) -> Refreshed:
        """Find models for the clients in turn (n,) that are as close to the server's as their promises (N,) allow."""
        terms, whole, own = self.contract, state.parameters, state.models[turns]
        blocks = Blocks.rows(server.layout)
        distances = blocks.sums((whole - own).abs())
        drawn = drawn_for([server.random(t, server.names[i]) for i in turns.tolist()], blocks.count, own)
        repairs = gains > terms.tolerance  # by their own training
        means = distances / blocks.sizes.to(distances)
        keys = torch.where(
            repairs[:, None], priorities(terms.guarded, means, drawn), priorities(terms.first, means, drawn)
        )
        search = Search(torch.where(repairs, state.share[turns], _FIRST), terms.looks)
        mixtures = Mixtures(self._scorer(server), whole, own, blocks)
        return refreshed(mixtures, keys, distances, promised[turns], state.validated[turns], search)

    def gains(self, server: Server, state: Trailing, updates: Tensor, turns: Tensor) -> Tensor:
        """Return by how much the own training of clients in turn makes their models better (n,): a running mean."""
        known = state.gain[turns]
        if not len(turns):
            return known
        own, trained = state.models[turns], updates[turns]
        scores = server.validation.thinned(_GAINS_ON).score(torch.cat([own, own + trained])).metric.to(known)
        before, after = scores.chunk(2)
        gains = torch.where(known == 0, after - before, (known + after - before) / 2)
        return torch.where(trained.any(1), gains, known)

    def promised(self, server: Server, accuracy: float) -> Tensor:
        """Return what is promised (N,): nobody less than it reaches alone, as far as the whole model is that good.

        A curve of the organiser's own is taken at its word.
        """
        owed = self.contract.owed(server)(server.contributions, accuracy)
        if server.brings_accuracies and self.contract.own_curve is None:
            owed = torch.maximum(owed, server.contributions.clamp(max=accuracy))
        return owed

    def delivered(self, server: Server, state: Trailing) -> Delivered:
        """Deliver each client's model."""
        return Delivered(state.models, None, state.promised, state.validated)

    def welcome(self, server: Server, state: Trailing, t: int) -> Trailing:
        """Give newcomers, who come last, what they have earned."""
        larger = super().welcome(server, state, t)
        new = torch.arange(server.clients, device=larger.models.device) >= len(state.models)
        thorough = replace(self, contract=replace(self.contract, looks=max(_FOR_NEWCOMERS, self.contract.looks)))
        after = thorough.follow(server, larger, t, torch.zeros_like(larger.models), new, ~new)
        return replace(after, download=larger.download + after.download)

    def _scorer(self, server: Server) -> Scorer:
        return server.validation.thinned(self.contract.samples)
