"""FedAVE: Adaptive Data Value Evaluation Framework for Collaborative Fairness (Wang et al., Neurocomputing 2024).

A client's reputation is the validation accuracy of its trained model, times how much its data resembles the server's:
the divergence between the distribution of its losses on its own data and on the validation set. The reward is the
aggregate, sparsified by reputation and by that resemblance.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.contributions.divergence import batch_means, closeness, divergences
from cofair.engine.phases import Phase
from cofair.engine.protocol import Rewards, Uploads
from cofair.engine.statistics import LOOK
from cofair.methods.families.sparse_aggregate import OwnModels, SparsifiedMethod, by_size, from_contributions
from cofair.methods.registry import register
from cofair.methods.server import Server
from cofair.settings import setting


@register
@dataclass(frozen=True)
class FedAVE(SparsifiedMethod[OwnModels]):
    """Reward by validation accuracy and by the likeness of losses on own data and on the server's."""

    name: ClassVar[str] = "fedave"
    paper: ClassVar[str] = "Wang et al., Neurocomputing 2024"
    needs_validation: ClassVar[bool] = True

    alpha: float = setting(0.95, "α: how much of the old reputation stays", minimum=0, maximum=1)
    beta: float = setting(1.5, "β: altruism; the larger, the more alike the rewards", above=0)
    divergence_in: Literal["both", "reputation", "quota", "neither"] = setting(
        "both", "where the divergence counts; ablations: quota is r⁻, reputation is q⁻, neither is r⁻q⁻"
    )
    reputation_from: Literal["uploads", "contributions"] = setting(
        "uploads", "judge by the uploads (the paper), or by the true contributions (as FedSAC and FedRAC compare)"
    )

    def rewards(self, server: Server, state: OwnModels, t: int, phase: Phase) -> Rewards:
        """Ask for the losses of each batch before training, too."""
        handed = super().rewards(server, state, t, phase)
        if self.divergence_in == "neither":
            return handed
        looks = math.ceil(len(server.validation.samples) / LOOK.batch_size)  # lists are cut to the shorter one
        return replace(handed, work=replace(server.work, statistics=("batch_losses_before",), looks=looks))

    def weights(self, server: Server, state: OwnModels, uploads: Uploads, t: int) -> Tensor:
        """Weigh by samples; the code of the ablation r⁻q⁻ weighs by validation accuracy, not normalised."""
        if self.divergence_in == "neither":
            return self._accuracy(server, state, uploads) * uploads.present
        return by_size(uploads)

    def judge(
        self, server: Server, state: OwnModels, uploads: Uploads, updates: Tensor, aggregate: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return the reputation and the quota, by the authors' code; in the first round no client receives anything."""
        close = torch.ones_like(state.reputation)
        if self.divergence_in != "neither":
            close = self._closeness(server, state, uploads, t)  # g_i = (1/KL_i) / max_j (1/KL_j)
        if self.reputation_from == "contributions":
            reputation = from_contributions(server, state.reputation)
        else:
            value = self._accuracy(server, state, uploads)
            if self.divergence_in in ("both", "reputation"):
                value = value * close**2
            fresh = value if t == 1 else self.alpha * state.reputation + (1 - self.alpha) * value
            reputation = torch.where(uploads.present, fresh, state.reputation).clamp(min=1e-3)
            reputation = reputation / reputation.sum()
        deserved = torch.tanh(self.beta * reputation)
        quota = deserved / deserved.max()
        if self.divergence_in in ("both", "quota"):
            quota = quota * close
        return reputation, torch.zeros_like(quota) if t == 1 else quota

    def _accuracy(self, server: Server, state: OwnModels, uploads: Uploads) -> Tensor:
        """Return the accuracy on V of the models as the clients trained them."""
        return server.score(state.models + uploads.updates).metric.to(state.reputation)

    def _closeness(self, server: Server, state: OwnModels, uploads: Uploads, t: int) -> Tensor:
        """Return g_i (N,) from the losses of the models before training, on own data and on V.

        Lists are cut to the shorter length, so that V is scored in no more batches than the largest client has.
        """
        own, order = uploads.statistics["batch_losses_before"], server.random(t, "validation batches")
        places = torch.randperm(len(server.validation.samples), generator=order)[: own.shape[1] * LOOK.batch_size]
        losses = server.score(state.models, per_sample=True, among=places).losses
        assert losses is not None
        divergence = divergences(own, batch_means(losses, LOOK.batch_size))  # KL_i
        return closeness(divergence).to(state.reputation)
