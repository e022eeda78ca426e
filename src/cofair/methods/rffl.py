"""RFFL: A Reputation Mechanism Is All You Need: Collaborative Fairness and Adversarial Robustness in Federated
Learning (Xu and Lyu, 2020).

A client's reputation is a moving average of the cosine of its update with the aggregate; a client that falls far below
the mean is removed from the set R of the reputable for good. The reward is the aggregate, sparsified in proportion to
reputation; the client adds it to the model that it trained itself.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Rewards, Uploads
from cofair.methods.families.sparse_aggregate import (
    OwnModels,
    SparsifiedMethod,
    by_reputation,
    by_size,
    from_contributions,
)
from cofair.methods.registry import register
from cofair.methods.rules.aggregation import cosine_with
from cofair.methods.rules.reputation import normalised, of_the_best, remaining
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class Reputable(OwnModels):
    """Own models and reputations, and which clients are still in R (N,)."""

    members: Tensor


@register
@dataclass(frozen=True)
class RFFL(SparsifiedMethod[Reputable]):
    """Reward by the cosine with the aggregate, and remove clients that it speaks against.

    An absent client keeps its reputation, is not removed and receives its share. A removed client continues alone: it
    has reputation 0, counts for nothing and receives nothing. Reputations that cancel out or are all 0 become equal
    ones, and a threshold that would remove all clients removes none.
    """

    name: ClassVar[str] = "rffl"
    paper: ClassVar[str] = "Xu and Lyu, 2020"

    gamma: float = setting(0.5, "Γ: updates longer than this are cut to this norm", above=0)
    alpha: float = setting(0.95, "α: how much of the old reputation stays", minimum=0, maximum=1)
    threshold: float = setting(
        1 / 3, "clients with less than this times the mean reputation in R are removed", minimum=0
    )
    patience: int = setting(10, "rounds in which no client is removed", minimum=0)
    reputation_from: Literal["uploads", "contributions"] = setting(
        "uploads", "judge by the uploads (the paper), or by the true contributions (as FedSAC and FedRAC compare)"
    )

    def start(self, server: Server) -> Reputable:
        """Everybody starts from the initial model, with no reputation, in R."""
        own = super().start(server)
        return Reputable(own.models, own.reputation, own.download, torch.ones_like(own.reputation, dtype=torch.bool))

    def learn(
        self, server: Server, state: Reputable, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> Reputable:
        """Aggregate the cut updates by reputation, judge the clients, and reward those that remain in R."""
        updates, aggregate = self.aggregated(server, state, uploads, t)
        reputation, shares = self.judge(server, state, uploads, updates, aggregate, t)
        members = state.members
        if t > self.patience:
            members = remaining(reputation, members, uploads.present, self.threshold)  # r_i ≥ 1 / (3 |R|)
            reputation = normalised(reputation, members)
            shares = of_the_best(reputation) * members
        reward = self.sparsified(server, aggregate, shares)
        download = (reward != 0).to(state.download).mean(1)
        return Reputable(state.models + updates + reward, reputation, download, members)

    def aggregated(self, server: Server, state: Reputable, uploads: Uploads, t: int) -> tuple[Tensor, Tensor]:
        """Return the updates, cut to Γ only where they are longer, and Σ_i r_i Δ_i."""
        length = torch.linalg.vector_norm(uploads.updates, dim=1, keepdim=True) + 1e-7
        updates = uploads.updates * (self.gamma / length).clamp(max=1)
        return updates, self.weights(server, state, uploads, t) @ updates

    def weights(self, server: Server, state: Reputable, uploads: Uploads, t: int) -> Tensor:
        """Weigh by samples in the first round, by reputation from then on."""
        return by_size(uploads) if t == 1 else by_reputation(state.reputation, uploads)

    def judge(
        self, server: Server, state: Reputable, uploads: Uploads, updates: Tensor, aggregate: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return r_i ← α r_i + (1 − α) cos(Δ_i, aggregate) within R, divided by the sum, and q_i = r_i / max_j r_j."""
        if self.reputation_from == "contributions":
            fresh = from_contributions(server, state.reputation)
        else:
            fresh = self.alpha * state.reputation + (1 - self.alpha) * cosine_with(updates, aggregate)
            fresh = torch.where(uploads.present, fresh, state.reputation)
        reputation = normalised(fresh, state.members)
        return reputation, of_the_best(reputation) * state.members
