"""What methods share whose rewards are a client's own model plus a sparsified aggregate."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor

from cofair.contributions.cosine import normalised as unit_norm
from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.rules.reputation import normalised
from cofair.methods.rules.sparsification import largest_entries
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class OwnModels:
    """Every client's own model (N, D), what the server believes of it, and the share it last downloaded (N,)."""

    models: Tensor
    reputation: Tensor
    download: Tensor


State = TypeVar("State", bound=OwnModels)


@dataclass(frozen=True)
class SparsifiedMethod(Method[State]):
    """Clients train their own models; each receives the largest entries of the aggregate, as many as it deserves."""

    gamma: float = setting(0.5, "Γ: every update is scaled to this norm", above=0)
    sparsify: Literal["layer", "all"] = setting(
        "layer", "keep a share of each parameter tensor (authors' code), or of all parameters together (paper)"
    )
    drop_one: bool = setting(False, "never hand out a whole tensor, as the authors' code, even to the best client")

    def start(self, server: Server) -> State:
        """Everybody starts from the initial model, with no reputation; a state that holds more adds to this one."""
        nothing = torch.zeros(server.clients, dtype=server.initial.dtype, device=server.initial.device)
        return cast(State, OwnModels(server.initial.repeat(server.clients, 1), nothing, nothing))

    def rewards(self, server: Server, state: State, t: int, phase: Phase) -> Rewards:
        """Each client continues from its own model; what travelled is the last sparsified aggregate."""
        return Rewards(state.models, server.work, download=state.download)

    def learn(self, server: Server, state: State, rewards: Rewards, uploads: Uploads, t: int, phase: Phase) -> State:
        """Aggregate scaled updates, judge the clients, and add to each model the entries that its client deserves.

        The local update itself is dropped: a model is the initial one plus all rewards.
        """
        updates, aggregate = self.aggregated(server, state, uploads, t)
        reputation, shares = self.judge(server, state, uploads, updates, aggregate, t)
        reward = self.sparsified(server, aggregate, shares)
        download = (reward != 0).sum(1).to(state.download) / reward.shape[1]
        return replace(state, models=state.models + reward, reputation=reputation, download=download)

    def aggregated(self, server: Server, state: State, uploads: Uploads, t: int) -> tuple[Tensor, Tensor]:
        """Return the scaled updates (N, D) and what they make together (D,)."""
        updates = unit_norm(uploads.updates, self.gamma)  # u_i = Γ Δ_i / ‖Δ_i‖
        return updates, self.weights(server, state, uploads, t) @ updates  # u_N

    def sparsified(self, server: Server, aggregate: Tensor, shares: Tensor) -> Tensor:
        """Return each client's part (N, D) of the aggregate."""
        return largest_entries(
            aggregate, shares, server.layout, per_tensor=self.sparsify == "layer", drop_one=self.drop_one
        )

    def weights(self, server: Server, state: State, uploads: Uploads, t: int) -> Tensor:
        """Return how clients count in the aggregate (N,): by their samples."""
        return by_size(uploads)

    @abstractmethod
    def judge(
        self, server: Server, state: State, uploads: Uploads, updates: Tensor, aggregate: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return the new reputations (N,) and the share q_i of the aggregate that each client receives (N,)."""

    def delivered(self, server: Server, state: State) -> Delivered:
        """Deliver each client's own model."""
        return Delivered(state.models)

    def reputation(self, state: State) -> Tensor:
        """Return the reputations."""
        return state.reputation

    def faded(self, state: State, factor: Tensor) -> State:
        """Return the state with faded reputations."""
        return replace(state, reputation=state.reputation * factor.to(state.reputation))


def by_size(uploads: Uploads) -> Tensor:
    """Return weights n_i / n over the clients that answered."""
    weight = (uploads.present * uploads.sizes.to(uploads.present.device)).double()  # whole numbers divide in float32
    return (weight / weight.sum().clamp(min=1)).to(uploads.updates.dtype)


def by_reputation(reputation: Tensor, uploads: Uploads) -> Tensor:
    """Return reputations (N,) as weights of the clients that answered, together as large as those of all clients."""
    weight = reputation * uploads.present
    answered = weight.abs().sum()  # reputations of both signs may all but cancel out
    return weight * torch.where(answered > 0, reputation.abs().sum() / answered, 0)  # exactly 1 where all answered


def from_contributions(server: Server, like: Tensor) -> Tensor:
    """Return the true contributions as reputations that sum to 1; equal ones where none is above zero."""
    return normalised(server.contributions.to(like).clamp(min=0))
