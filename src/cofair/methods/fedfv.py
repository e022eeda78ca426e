"""FedFV: Federated Learning with Fair Averaging (Wang et al., IJCAI 2021).

Gradients of clients may point against each other, and their plain mean then serves some clients at the cost of
others. Each gradient is therefore bent away from those it conflicts with, in the order of clients' losses, the
clients with the largest losses excepted; then the mean is bent away from gradients of earlier rounds. What comes
out is made as long as the plain mean. Everybody receives the same model.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class FedFVState:
    """The model (D,), each client's latest gradient (N, D), and the round it is from (N,), 0 for none."""

    parameters: Tensor
    gradients: Tensor
    round: Tensor


@register
@dataclass(frozen=True)
class FedFV(Method[FedFVState]):
    """The mean of gradients after their conflicts are resolved.

    Absent clients take part with their latest gradient, while it is younger than τ rounds. A gradient of zeros
    conflicts with nothing. Where gradients leave nothing after they were bent, the model stays.
    """

    name: ClassVar[str] = "fedfv"
    paper: ClassVar[str] = "Wang et al., IJCAI 2021"

    alpha: float = setting(0.1, "α: share of the clients, those of the largest losses, not bent", minimum=0, maximum=1)
    tau: int = setting(1, "τ: rounds whose gradients the mean must not point against; 0 for none", minimum=0)

    def start(self, server: Server) -> FedFVState:
        """Start from the initial model, with no gradient known."""
        gradients = torch.zeros_like(server.initial).repeat(server.clients, 1)
        return FedFVState(server.initial, gradients, torch.zeros_like(server.sizes))

    def rewards(self, server: Server, state: FedFVState, t: int, phase: Phase) -> Rewards:
        """Hand the model to everybody, and ask for its loss before training."""
        return Rewards(state.parameters, replace(server.work, statistics=("loss_before",)))

    def learn(
        self, server: Server, state: FedFVState, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> FedFVState:
        """Step along the mean gradient, bent and then rescaled (Algorithm 1)."""
        present = uploads.present
        if not bool(present.any()):
            return state
        gradients = -uploads.updates[present]  # g_k = w − w_k
        latest = torch.where(present[:, None], -uploads.updates, state.gradients)
        when = torch.where(present, t, state.round)
        step = self.internal(gradients, uploads.statistics["loss_before"][present])
        step = self.external(step, latest, when, t)
        length, wanted = step.norm(), gradients.mean(0).norm()
        if bool(length > 0):
            step = step / length * wanted  # ‖g‖ = ‖(1/m) Σ_k g_k‖
        return FedFVState(state.parameters - step, latest, when)

    def internal(self, gradients: Tensor, loss: Tensor) -> Tensor:
        """Return the mean (D,) of gradients (m, D), each bent away from those it conflicts with (Algorithm 2)."""
        m = len(gradients)
        order = loss.argsort(stable=True).tolist()
        kept = order[math.ceil((m - 1) * (1 - self.alpha) - 1e-9) :] if self.alpha > 0 else []
        bent = torch.ones(m, dtype=torch.bool, device=gradients.device)
        bent[kept] = False
        # bent gradients are mixtures of the m: all that happens to them happens to coefficients and a Gram matrix
        gram = (gradients @ gradients.T).double()
        mixture = torch.eye(m, dtype=torch.float64, device=gradients.device)
        for j in order:
            along = mixture @ gram[:, j]  # ⟨p_i, g_j⟩
            conflicts = bent & (along < 0)
            conflicts[j] = False
            mixture[conflicts, j] -= along[conflicts] / gram[j, j]  # p_i ← p_i − ⟨p_i, g_j⟩ / ‖g_j‖² · g_j
        return mixture.mean(0).to(gradients) @ gradients

    def external(self, step: Tensor, latest: Tensor, when: Tensor, t: int) -> Tensor:
        """Return the step (D,), bent away from the gradients of the last τ rounds, oldest first (Algorithm 3)."""
        if t < self.tau:
            return step
        for age in range(self.tau - 1, -1, -1):
            conflicts = (when == t - age) & (latest @ step < 0)
            against = latest[conflicts].sum(0)
            along = step @ against
            if bool(along < 0):
                step = step - along / (against @ against) * against
        return step

    def delivered(self, server: Server, state: FedFVState) -> Delivered:
        """Deliver the model to everybody."""
        return Delivered(state.parameters)
