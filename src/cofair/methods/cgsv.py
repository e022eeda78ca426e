"""CGSV: Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning (Xu et al., NeurIPS 2021).

A client contributes what its update has in common with everybody's: the cosine of the two, which approximates its
Shapley value in the game of cosines. Reputation is a moving average of that. The reward is the aggregate, sparsified
the more the smaller the reputation; the client adds it to its own model in place of its own update.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.protocol import Uploads
from cofair.methods.families.sparse_aggregate import (
    OwnModels,
    SparsifiedMethod,
    by_reputation,
    by_size,
    from_contributions,
)
from cofair.methods.registry import register
from cofair.methods.rules.aggregation import cosine_with
from cofair.methods.server import Server
from cofair.settings import setting


@register
@dataclass(frozen=True)
class CGSV(SparsifiedMethod[OwnModels]):
    """Reward by the cosine of a client's update with the aggregate.

    An absent client keeps its reputation and receives the share that it earned before.
    """

    name: ClassVar[str] = "cgsv"
    paper: ClassVar[str] = "Xu et al., NeurIPS 2021"

    alpha: float = setting(0.95, "α: how much of the old reputation stays", minimum=0, maximum=1)
    beta: float = setting(1.0, "β: altruism; the larger, the more alike the rewards", above=0)
    measure: Literal["cosine", "euclidean"] = setting(
        "cosine", "what counts: the cosine with the aggregate, or the nearness to it (variant EU)"
    )
    reputation_from: Literal["uploads", "contributions"] = setting(
        "uploads", "judge by the uploads (the paper), or by the true contributions (as FedSAC and FedRAC compare)"
    )

    def weights(self, server: Server, state: OwnModels, uploads: Uploads, t: int) -> Tensor:
        """Weigh by samples in the first iteration, by reputation from then on (Eq. 1)."""
        return by_size(uploads) if t == 1 else by_reputation(state.reputation, uploads)

    def judge(
        self, server: Server, state: OwnModels, uploads: Uploads, updates: Tensor, aggregate: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return r_i (Eq. 4) and q_i (Eq. 5)."""
        if self.reputation_from == "contributions":
            reputation = from_contributions(server, state.reputation)
        else:
            if self.measure == "cosine":
                score = cosine_with(updates, aggregate)  # Eq. 3: ψ_i = cos(u_i, u_N)
            else:
                mean = by_size(uploads) @ uploads.updates  # of the updates as uploaded
                distance = torch.linalg.vector_norm(uploads.updates - mean, dim=1) * uploads.present
                score = distance.max() - distance + 1e-3  # the farthest is one that answered
            fresh = self.alpha * state.reputation + (1 - self.alpha) * score
            reputation = torch.where(uploads.present, fresh, state.reputation)
            reputation = reputation.clamp(min=1e-3)  # no client is shut out for ever (authors' code)
            reputation = reputation / reputation.sum()
        deserved = torch.tanh(self.beta * reputation)
        return reputation, deserved / deserved.max()
