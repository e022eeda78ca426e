"""FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning (Wang et al., KDD 2024).

A client's reputation grows exponentially with its contribution. The server measures how important each neuron is by
leaving it out, and gives each client the least important neurons, as many as its reputation pays for. Parameters are
averaged over the clients that hold them, so that rarely held ones are not diluted.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.methods.families.submodels import ReputedSubmodels, SubmodelMethod, exponential_share
from cofair.methods.registry import register
from cofair.methods.server import Server
from cofair.scoring.importance import by_removal, transform
from cofair.scoring.nested import prefix_masks
from cofair.settings import setting

_ROUNDING = 1e-6  # of a cumulative sum of shares that add up to 100


@dataclass(frozen=True)
class ImportanceSubmodels(ReputedSubmodels):
    """The same, and how important each neuron was when that was last measured (K,)."""

    importance: Tensor


@register
@dataclass(frozen=True)
class FedSAC(SubmodelMethod[ImportanceSubmodels]):
    """Submodels of the least important neurons, as many as a reputation pays for."""

    name: ClassVar[str] = "fedsac"
    paper: ClassVar[str] = "Wang et al., KDD 2024"
    needs_validation: ClassVar[bool] = True

    beta: float = setting(10.0, "β: how steeply reputation grows with contribution", minimum=0)
    interval: int = setting(10, "rounds between two measurements of importance", minimum=1)
    importance_transform: Literal["shift", "sigmoid", "clamp", "abs", "raw"] = setting(
        "shift", "what is done with negative importances, of which the paper does not speak"
    )
    # No code of FedSAC was released; "nonzero" is its descendant FedRAC's. By the paper's own count the weakest client
    # comes nearer to what the paper prints.
    count: Literal["nonzero", "mask"] = setting(
        "mask", "which clients count in the mean of a parameter: holders (paper), or those whose update is not zero"
    )
    without_allocation: bool = setting(False, "ablation: all neurons equally important, in random order")

    def start(self, server: Server) -> ImportanceSubmodels:
        """Everybody holds everything in the first round, in which nothing is measured yet."""
        whole = super().start(server)
        nothing, unknown = torch.zeros_like(server.contributions), torch.zeros_like(whole.frequency)
        return ImportanceSubmodels(**vars(whole), reputation=nothing, importance=unknown)

    def grant(self, server: Server, state: ImportanceSubmodels, t: int) -> ImportanceSubmodels:
        """Measure importance in round 2 and every `interval` rounds from then on, and allocate again."""
        if (t - 2) % self.interval:
            return state
        if self.without_allocation:
            importance = torch.full_like(state.importance, 100 / len(state.importance))
        else:
            # I_k = CE(V; θ without k) − CE(V; θ), in percent of their sum
            importance = transform(by_removal(server.validation, state.parameters).double(), self.importance_transform)
        return self.allocate(server, replace(state, importance=importance), t)

    def welcome(self, server: Server, state: ImportanceSubmodels, t: int) -> ImportanceSubmodels:
        """Grant newcomers what the importance measured last gives them."""
        return self.allocate(server, super().welcome(server, state, t), t)

    def allocate(self, server: Server, state: ImportanceSubmodels, t: int) -> ImportanceSubmodels:
        """Give each client the neurons that its reputation pays for (Eq. 5 to 7)."""
        importance, K = state.importance, len(state.importance)
        if self.without_allocation:
            order = torch.randperm(K, generator=server.random(t, "order")).to(importance.device)
        else:
            order = importance.argsort(stable=True)
        # r_i = 100 · exp(β c_i) / max_j exp(β c_j)
        reputation = exponential_share(server.contributions, self.beta)
        # the most of the least important neurons that r_i pays for; at least one, and all for the best
        paid = importance[order].cumsum(0)
        counts = (paid[None, :] <= reputation[:, None] + _ROUNDING).sum(1).clamp(min=1)
        counts[reputation >= 100 - _ROUNDING] = K
        return replace(state, granted=prefix_masks(order, counts), reputation=reputation)

    def reputation(self, state: ImportanceSubmodels) -> Tensor:
        """Return the reputations."""
        return state.reputation
