"""IAFL: Incentive-Aware Federated Learning with Training-Time Model Rewards (Wu et al., ICLR 2024).

The more a client contributes, the more of the others' updates go into the model that it is rewarded with: a random
draw of them, as many as its share γ_i. The best client receives the mean of all. Now and then, with probability q, a
client's model is replaced by the reference model, so that errors do not pile up and all converge to the same.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.rules.reputation import counted, of_the_best
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class IAFLState:
    """Every client's model (N, D), the reference model (D,), γ (N,), and what was last downloaded (N,)."""

    models: Tensor
    reference: Tensor
    gamma: Tensor
    download: Tensor


@register
@dataclass(frozen=True)
class IAFL(Method[IAFLState]):
    """Reward by the mean over a random draw of the others' updates.

    Draws are of the clients that answered. An absent client receives its draw, without an update of its own. Where
    nothing was contributed by anybody, or all contribute the same, everybody receives the mean of all.
    """

    name: ClassVar[str] = "iafl"
    paper: ClassVar[str] = "Wu et al., ICLR 2024"

    kappa: float = setting(0.0, "κ: how much is shared regardless of contribution; 1 is all", minimum=0, maximum=1)
    q: float = setting(0.0, "q: probability that a client gets the reference model in a round", minimum=0, maximum=1)
    reputation_from: Literal["contributions", "size"] = setting(
        "contributions", "p_i: the true contributions (as FedRAC compares), or the number of samples"
    )

    def start(self, server: Server) -> IAFLState:
        """Everybody starts from the initial model; γ_i = (p_i / max_j p_j)^(1 − κ)."""
        gamma = self.shares(server)
        return IAFLState(server.initial.repeat(server.clients, 1), server.initial, gamma, torch.zeros_like(gamma))

    def rewards(self, server: Server, state: IAFLState, t: int, phase: Phase) -> Rewards:
        """Reset some models to the reference model, with probability q each."""
        drawn = torch.rand(server.clients, generator=server.random(t, "reset"), dtype=torch.float64)
        reset = (drawn[server.places()] < self.q).to(state.models.device)
        models = torch.where(reset[:, None], state.reference, state.models)
        return Rewards(models, server.work, download=torch.where(reset, 1, state.download))

    def learn(
        self, server: Server, state: IAFLState, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> IAFLState:
        """Add to each model the plain mean of the updates drawn for its client; the local update is part of it."""
        gamma = self.shares(server)  # contributions may be measured again, and clients join
        drawn = self.draws(server, gamma, uploads.present, t)
        mean = drawn / drawn.sum(1, keepdim=True).clamp(min=1)
        # the reference model follows the client of the largest γ, the first by name among several
        best = int(torch.where(gamma >= gamma.max(), server.places().to(drawn.device), len(drawn)).argmin())
        others = drawn.fill_diagonal_(0).any(1)
        return replace(
            state,
            models=rewards.parameters + mean.to(uploads.updates) @ uploads.updates,
            reference=state.reference + mean[best].to(uploads.updates) @ uploads.updates,
            gamma=gamma,
            download=others.to(state.download),
        )

    def shares(self, server: Server) -> Tensor:
        """Return γ_i = (p_i / max p)^(1 − κ) (N,)."""
        brought = server.contributions if self.reputation_from == "contributions" else server.sizes.double()
        return of_the_best(brought) ** (1 - self.kappa)

    def draws(self, server: Server, gamma: Tensor, present: Tensor, t: int) -> Tensor:
        """Return whose updates make whose reward (N, N): its own and ⌈γ_i (n − 1)⌉ others of the n that answered."""
        N, places = server.clients, server.places()
        lots = torch.rand(N, N, generator=server.random(t, "draw"), dtype=torch.float64)[places][:, places]
        lots = lots.to(present.device).masked_fill_(~present, 2).fill_diagonal_(2)  # 2 is never drawn
        rank = lots.argsort(1).argsort(1)
        wanted = counted(gamma, int(present.sum()) - 1, up=True)
        drawn = (rank < wanted[:, None]) & (lots < 2)
        return (drawn | torch.diag(present)).double()

    def delivered(self, server: Server, state: IAFLState) -> Delivered:
        """Deliver each client's own model."""
        return Delivered(state.models)

    def reputation(self, state: IAFLState) -> Tensor:
        """Return γ."""
        return state.gamma
