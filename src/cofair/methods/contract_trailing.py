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
from cofair.methods.rules.refreshing import priorities, refreshed
from cofair.methods.server import Server

if TYPE_CHECKING:
    from cofair.methods.contract import Contract


@dataclass(frozen=True)
class Trailing:
    """The server's model (D,), the clients' (N, D), and of each client (N,) the accuracies promised and validated.

    `gain` (N,) is by how much a client's own training made its model better when its turn was last: what could be made
    of it. `download` (N,) is the share of a model that changed in each client's.
    """

    parameters: Tensor
    models: Tensor
    promised: Tensor
    validated: Tensor
    gain: Tensor
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
        return Trailing(server.initial, models, nothing, nothing, nothing, nothing)

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
        return self.follow(server, replace(state, parameters=state.parameters + mean), t, uploads.updates)

    def weights(self, server: Server, state: Trailing, t: int) -> Tensor | None:
        """Return what updates weigh (N,): by contribution, and less the further behind a client's model is."""
        weights = self.contract.weights(server)
        most = state.validated.max()
        if t == 1 or not self.contract.freshness:
            return weights
        near = (state.validated / most.clamp(min=torch.finfo(most.dtype).tiny)).clamp(0, 1) ** self.contract.freshness
        return near if weights is None else near * weights

    def follow(self, server: Server, state: Trailing, t: int, updates: Tensor, only: Tensor | None = None) -> Trailing:
        """Bring models closer to the server's, those of clients whose turn it is, or `only` some (N,).

        While the whole model is no better than a client's promise, all of it is for that client.
        """
        terms, whole = self.contract, state.parameters
        scorer = server.validation.thinned(terms.samples)
        due = (server.places() + t) % terms.every == 0 if only is None else only
        turns = due.nonzero().flatten()
        there = turns.to(whole.device)
        own, trained = state.models[there], updates[there]
        found = scorer.score(torch.cat([whole[None], own, own + trained])).metric.to(state.promised)
        before, made = found[1:].chunk(2)
        promised = self.promised(server, float(found[0]))
        gains = torch.where(trained.any(1), made - before, state.gain[there])
        sources = [server.random(t, server.names[i]) for i in turns.tolist()]
        drawn = priorities(terms.first, whole, own, server.layout, sources)
        keys = torch.where((gains > terms.tolerance)[:, None], (whole - own).abs(), drawn)
        closer, accuracies = refreshed(scorer, whole, own, keys, promised[there], before, terms.looks)
        young = promised >= found[0]
        models = torch.where(young[:, None], whole, state.models.index_copy(0, there, closer))
        validated = torch.where(young, found[0], state.validated.index_copy(0, there, accuracies))
        download = (models != state.models).sum(1).to(promised) / len(whole)
        return Trailing(whole, models, promised, validated, state.gain.index_copy(0, there, gains), download)

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
        new = torch.arange(server.clients) >= len(state.models)
        larger = super().welcome(server, state, t)
        return self.follow(server, larger, t, torch.zeros_like(larger.models), new)
