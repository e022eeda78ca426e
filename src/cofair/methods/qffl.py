"""q-FFL: Fair Resource Allocation in Federated Learning (Li et al., ICLR 2020).

Clients whose loss is high count more, by the power q of their loss, so that accuracies come out more alike; this is
equal fairness, the opposite of collaborative fairness. The step is as long as a bound on the curvature of the new
objective allows. The comparisons of FedSAC and FedAVE make the model personal with one more local training in every
round, from which the next round starts.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from cofair.engine.phases import PERSONALISE, TRAIN, Phase
from cofair.engine.protocol import Rewards, Uploads
from cofair.methods.fedavg import FedAvg, FedAvgState
from cofair.methods.registry import register
from cofair.methods.server import Server
from cofair.settings import setting


@register
@dataclass(frozen=True)
class QFFL(FedAvg):
    """FedAvg in which a client's update counts by its loss.

    Absent clients do not count; where all are absent the model stays. A loss below 0, which a custom loss may
    have, counts as 0. With q = 0 this is FedAvg.
    """

    name: ClassVar[str] = "q-ffl"
    paper: ClassVar[str] = "Li et al., ICLR 2020"
    averages: ClassVar[bool] = False

    q: float = setting(1.0, "q: how much more clients with a high loss count; 0 is FedAvg", minimum=0, maximum=100)
    personalise_units: int = setting(
        1, "local trainings that make the model personal: 1 as FedAVE's authors run it, 0 for the standard", minimum=0
    )
    carry_over: bool = setting(True, "the next round starts from the personal models, as FedAVE's authors run it")

    def rewards(self, server: Server, state: FedAvgState, t: int, phase: Phase) -> Rewards:
        """Ask for the loss before training, too."""
        given = super().rewards(server, state, t, phase)
        return given if phase != TRAIN else replace(given, work=replace(given.work, statistics=("loss_before",)))

    def learn(
        self, server: Server, state: FedAvgState, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> FedAvgState:
        """Move the model by w ← w − Σ_k F_k^q Δ_k / Σ_k (q F_k^{q−1} ‖Δ_k‖² + L F_k^q)."""
        if phase == PERSONALISE:
            return super().learn(server, state, rewards, uploads, t, phase)
        present = uploads.present
        if not bool(present.any()):
            return state
        loss = uploads.statistics["loss_before"][present].double().clamp(min=0) + 1e-10  # F_k
        L = 1 / server.work.lr
        delta = -L * uploads.updates[present]  # Δ_k = L (w − w_k), from where the client started
        length = torch.linalg.vector_norm(delta, dim=1).double().square()  # ‖Δ_k‖²
        # both sums are divided by max_k F_k^q, so that no power of a loss overflows
        relative = loss / loss.max()
        count = relative**self.q
        if self.weights == "size":
            count = count * uploads.sizes.to(present.device)[present] / uploads.sizes.sum()
        bound = count * (self.q / loss * length + L)  # h_k
        step = (count / bound.sum()).to(delta) @ delta
        return replace(state, parameters=state.parameters - step)
