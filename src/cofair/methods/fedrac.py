"""FedRAC: Rolling Submodel Allocation for Collaborative Fairness in Federated Learning (Wang et al., CVPR 2026).

Reputation starts close together and spreads out as training proceeds. Submodels are built from the neurons that were
trained least often so far, so that in the end all are trained evenly, and a client gets the largest of them whose
accuracy on the validation set does not exceed its reputation. Parameters are averaged over their holders.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.methods.families.submodels import ReputedSubmodels, SubmodelMethod, exponential_share
from cofair.methods.registry import register
from cofair.methods.server import Server
from cofair.scoring.nested import prefix_masks
from cofair.settings import setting


@register
@dataclass(frozen=True)
class FedRAC(SubmodelMethod[ReputedSubmodels]):
    """Submodels of the least trained neurons, as accurate as a reputation that spreads out over the rounds."""

    name: ClassVar[str] = "fedrac"
    paper: ClassVar[str] = "Wang et al., CVPR 2026"
    needs_validation: ClassVar[bool] = True

    beta: float = setting(80.0, "β: how steeply c^n grows with contribution", minimum=0)
    zeta: float = setting(0.3, "ζ in ln(ζt + κ): how fast reputations spread", above=0)
    kappa: float = setting(3.0, "κ in ln(ζt + κ)", minimum=math.e)
    lambda_early: float = setting(0.2, "λ up to round `switch`", minimum=0, maximum=1)
    lambda_late: float = setting(0.8, "λ after round `switch`", minimum=0, maximum=1)
    switch: int = setting(100, "the last round of λ early", minimum=0)
    pack: int = setting(8, "neurons between two candidate submodels", minimum=1)
    pack_late: int | None = setting(
        None, "the same after round `switch`; none: no change (ResNet: 32, then 8)", minimum=1
    )
    pack_offset: Literal[0, 1] = setting(
        0, "0: one pack less than the prefix that qualifies (authors' code); 1: that prefix itself (paper)"
    )
    always_one_more: bool = setting(
        False, "each next client gets a pack more even on equal contributions, as the authors' code"
    )
    without_allocation: bool = setting(False, "ablation: submodels of random neurons")
    without_reputation: bool = setting(False, "ablation: the reputation Acc · c^n / 100, which does not spread")

    def start(self, server: Server) -> ReputedSubmodels:
        """Everybody holds everything in the first round."""
        return ReputedSubmodels(**vars(super().start(server)), reputation=torch.zeros_like(server.contributions))

    def grant(self, server: Server, state: ReputedSubmodels, t: int) -> ReputedSubmodels:
        """Order the neurons, score the candidate submodels, and give each client the one that it deserves."""
        frequency, K = state.frequency, len(state.frequency)  # f^t = f^{t-1} + Σ_i m_i^t, over clients that answered
        if self.without_allocation:
            order = torch.randperm(K, generator=server.random(t, "order")).to(frequency.device)
        else:
            order = frequency.argsort(stable=True)  # π^t: the least trained first
        pack = self.pack if t <= self.switch or self.pack_late is None else self.pack_late
        sizes = torch.arange(1, math.ceil(K / pack) + 1).mul(pack).clamp(max=K)
        scores = server.validation.prefixes(state.parameters, order, sizes)
        accuracy = scores.metric.double().cpu()  # A_k
        contributions = server.contributions.cpu()  # what is decided for each client is decided on the host
        reputation = self.reputation_at(t, contributions, accuracy[-1])
        counts = self.allocate(sizes, accuracy, reputation, contributions)
        granted = prefix_masks(order, counts)
        return replace(state, granted=granted, reputation=reputation.to(frequency.device))

    def reputation_at(self, t: int, contributions: Tensor, accuracy: Tensor) -> Tensor:
        """Return r_i^t (N,), given the whole model's accuracy on the validation set."""
        normalised = exponential_share(contributions, self.beta)  # c_i^n
        if self.without_reputation:
            return accuracy * normalised / 100
        strength = self.lambda_early if t <= self.switch else self.lambda_late
        held_back = strength * accuracy * (1 - 1 / math.log(self.zeta * t + self.kappa))  # tmp^t
        return contributions + (accuracy - held_back) * normalised / 100

    def allocate(self, sizes: Tensor, accuracy: Tensor, reputation: Tensor, contributions: Tensor) -> Tensor:
        """Return how many neurons each client gets (N,), given the sizes and accuracies of the candidates.

        From the smallest contribution up: the largest pack whose accuracy does not exceed the reputation, at least
        one more than the contribution before. The best get all. Equal contributions share a pack and the last pack can
        be shared by many, unless `always_one_more` asks for the authors' code.
        """
        scores, deserved, brought = accuracy.tolist(), reputation.tolist(), contributions.tolist()
        last = len(scores) - 1
        packs = sizes.tolist()
        counts = packs[-1:] * len(brought)
        before: int = -self.pack_offset  # so that no client gets less than one pack
        previous: float | None = None
        order = sorted(range(len(brought)), key=brought.__getitem__)
        for position, i in enumerate(order):
            if brought[i] == max(brought) and not (self.always_one_more and position < len(order) - 1):
                continue
            if self.always_one_more or brought[i] != previous:
                smallest = before + 1
                fits = [s for s in range(last, smallest - 1, -1) if scores[s] <= deserved[i]]
                before = fits[0] if fits else smallest
                if not self.always_one_more:
                    before = min(before, last)
            previous = brought[i]
            counts[i] = packs[min(max(before + self.pack_offset - 1, 0), last)]
        return torch.tensor(counts)

    def reputation(self, state: ReputedSubmodels) -> Tensor:
        """Return the reputations."""
        return state.reputation
