"""ECI: the multi-round contribution index (Song, Tong and Wei, IEEE Big Data 2019), a baseline of CGSV.

In each round the server rebuilds, from the uploads, the model that every coalition of clients would have made, and
takes the Shapley values of their validation accuracies. A client's contribution index adds up its part of them over
the rounds, early ones counting more. The reward is the aggregate, sparsified in proportion to the index.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.contributions import index
from cofair.engine.phases import Phase
from cofair.engine.protocol import Rewards, Uploads
from cofair.methods.families.sparse_aggregate import OwnModels, SparsifiedMethod, from_contributions
from cofair.methods.registry import register
from cofair.methods.rules.reputation import of_the_best
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class Indexed(OwnModels):
    """Own models, the contribution index as reputation, and the server's model (D,), which all aggregates made."""

    server: Tensor


@register
@dataclass(frozen=True)
class ECI(SparsifiedMethod[Indexed]):
    """Reward by the Shapley value of validation accuracy, round by round.

    An absent client gains nothing in that round. A round whose updates improve nothing together counts for no
    client. While no index is above zero, all clients receive the whole aggregate.
    """

    name: ClassVar[str] = "eci"
    paper: ClassVar[str] = "Song et al., IEEE Big Data 2019"
    needs_validation: ClassVar[bool] = True

    decay: float = setting(0.9, "λ: round t counts λ^t", above=0, maximum=1)
    least: float = setting(1e-3, "rounds whose λ^t is below this are not scored any more; 0 for none", minimum=0)
    permutations: int = setting(
        150, "random orders that take the place of all coalitions, from 10 clients on", minimum=1
    )
    reputation_from: Literal["uploads", "contributions"] = setting(
        "uploads", "judge by the uploads (the baseline), or by the true contributions (as FedSAC and FedRAC compare)"
    )

    def start(self, server: Server) -> Indexed:
        """Everybody starts from the initial model, with an index of 0."""
        own = super().start(server)
        return Indexed(own.models, torch.zeros_like(server.contributions), own.download, server.initial)

    def learn(
        self, server: Server, state: Indexed, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> Indexed:
        """Reward as all methods that sparsify; the server's model moves by the whole aggregate."""
        learned = super().learn(server, state, rewards, uploads, t, phase)
        return replace(learned, server=state.server + self.aggregated(server, state, uploads, t)[1])

    def judge(
        self, server: Server, state: Indexed, uploads: Uploads, updates: Tensor, aggregate: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return CI_i ← CI_i + λ^t φ_i / Σ_j φ_j and q_i = CI_i / max_j CI_j, not below 0."""
        if self.reputation_from == "contributions":
            reputation = from_contributions(server, state.reputation)
        elif self.decay**t < self.least:
            reputation = state.reputation
        else:
            # φ_i of v(S) = accuracy on V of M_S = w + Σ_{i in S} (n_i / n_S) Δ_i
            values = index.coalition_shapley(
                server.validation, state.server, uploads.updates, uploads.sizes, uploads.present,
                server.random(t, "coalitions"), self.permutations, server.places(),
            )  # fmt: skip
            reputation = index.accumulated(state.reputation, values, t, self.decay)
        return reputation, of_the_best(reputation)
