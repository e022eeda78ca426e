"""Submodels that are windows of each layer, as wide as reputation pays for: what HeteroFL, FjORD and FedRolex share.

The three give clients of little computing power a narrower model; here it is clients of little reputation. Each takes
the same share of every layer, and parameters are averaged over the clients that hold them.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from cofair.methods.families.submodels import ReputedSubmodels, SubmodelMethod, exponential_share, neurons_of
from cofair.methods.rules.reputation import counted, of_the_best
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class WindowMethod(SubmodelMethod[ReputedSubmodels]):
    """Everybody holds a share p_i of the units of each layer, at least one; the best holds all.

    Shares follow from the contributions alone, so absent clients change nothing; equal contributions give equal
    submodels.
    """

    count: Literal["nonzero", "mask"] = setting(
        "mask", "which clients count in the mean of a parameter: holders (papers), or those whose update is not zero"
    )
    share: Literal["exponential", "linear"] = setting(
        "exponential", "p_i: exp(β c_i) / max_j exp(β c_j), the reputation of FedSAC, or c_i / max_j c_j"
    )
    beta: float = setting(10.0, "β: how steeply exponential shares grow with contribution", minimum=0)

    def start(self, server: Server) -> ReputedSubmodels:
        """Shares are known from the start, so the first round hands out submodels already."""
        whole = super().start(server)
        return self.grant(server, ReputedSubmodels(**vars(whole), reputation=torch.zeros_like(server.contributions)), 1)

    def grant(self, server: Server, state: ReputedSubmodels, t: int) -> ReputedSubmodels:
        """Grant everybody its window of each layer."""
        c = server.contributions
        reputation = exponential_share(c, self.beta) if self.share == "exponential" else 100 * of_the_best(c)
        granted = self.windows(server, reputation / 100, t)
        return replace(state, granted=granted, reputation=reputation)

    def windows(self, server: Server, shares: Tensor, t: int) -> Tensor:
        """Return masks (N, K): the units of each layer within the first ⌈p K_l⌉ of the order of round t."""
        layers = []
        for where in neurons_of(server, self.name).slices:
            units = where.stop - where.start
            width = counted(shares, units, up=True).clamp(min=1)
            place = (torch.arange(units, device=shares.device) - self.first(t)) % units
            layers.append(place[None, :] < width[:, None])
        return torch.cat(layers, 1)

    def first(self, t: int) -> int:
        """Return the unit at which windows start in round t, counted around the layer."""
        return 0

    def reputation(self, state: ReputedSubmodels) -> Tensor:
        """Return the reputations."""
        return state.reputation
