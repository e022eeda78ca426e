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

    `download` (N,) is the share of a model that changed in each client's.
    """

    parameters: Tensor
    models: Tensor
    promised: Tensor
    validated: Tensor
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
        return Trailing(server.initial, server.initial.repeat(server.clients, 1), nothing, nothing, nothing)

    def rewards(self, server: Server, state: Trailing, t: int, phase: Phase) -> Rewards:
        """Hand out each client's own model; only what changed in it travels."""
        return Rewards(state.models, server.work, download=state.download)

    def learn(
        self, server: Server, state: Trailing, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> Trailing:
        """Move the server's model by the updates, then let the clients' follow."""
        mean = mean_over_holders(uploads, None, "mask", server.aggregation, self.weights(server, state, t))
        return self.follow(server, replace(state, parameters=state.parameters + mean), t)

    def weights(self, server: Server, state: Trailing, t: int) -> Tensor | None:
        """Return what updates weigh (N,): by contribution, and less the further behind a client's model is."""
        weights = self.contract.weights(server)
        most = state.validated.max()
        if t == 1 or not self.contract.freshness:
            return weights
        near = (state.validated / most.clamp(min=torch.finfo(most.dtype).tiny)).clamp(0, 1) ** self.contract.freshness
        return near if weights is None else near * weights

    def follow(self, server: Server, state: Trailing, t: int, only: Tensor | None = None) -> Trailing:
        """Bring models closer to the server's, those of clients whose turn it is, or `only` some (N,).

        While the whole model is no better than a client's promise, all of it is for that client.
        """
        terms, theta = self.contract, state.parameters
        scorer = server.validation.thinned(terms.samples)
        device = theta.device
        due = (server.places() + t) % terms.every == 0 if only is None else only
        places = due.nonzero().flatten().tolist()
        there = torch.tensor(places, dtype=torch.long, device=device)
        own = state.models[there]
        found = scorer.score(torch.cat([theta[None], own])).metric.to(state.promised)
        promised = self.promised(server, float(found[0]))
        whole = promised >= found[0]
        keys = priorities(terms.first, theta, own, server.layout, [server.random(t, server.names[i]) for i in places])
        closer, accuracies = refreshed(scorer, theta, own, keys, promised[there], found[1:], terms.looks)
        models = state.models.clone()
        models[there] = closer
        models = torch.where(whole[:, None], theta, models)
        validated = state.validated.clone()
        validated[there] = accuracies.to(validated)
        validated = torch.where(whole, found[0], validated)
        download = (models != state.models).sum(1).to(promised) / len(theta)
        return Trailing(theta, models, promised, validated, download)

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
        return self.follow(server, super().welcome(server, state, t), t, new)
