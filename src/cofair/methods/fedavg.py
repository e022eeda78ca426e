"""FedAvg: one average model for all (McMahan et al., AISTATS 2017).

With personalisation, as in the comparisons of FedSAC (KDD 2024) and FedRAC (CVPR 2026): each client trains
the average a little further on its own data, and the result counts as its reward. The papers describe one
additional local training at the end; their released code does three in every round and lets the next round
start from the personal models, so that the server averages after four local trainings.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.phases import PERSONALISE, TRAIN, Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.rules.aggregation import mean_over_clients
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class FedAvgState:
    """The average model (D,) and, once there are any, the clients' personal models (N, D)."""

    parameters: Tensor
    personal: Tensor | None = None


@register
@dataclass(frozen=True)
class FedAvg(Method[FedAvgState]):
    """All clients train the same model; the server averages. Everybody receives the average."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    averages: ClassVar[bool] = True

    personalise_units: int = setting(
        1, "local trainings that make the average personal: 1 as the papers, 3 as their code, 0 for none", minimum=0
    )
    carry_over: bool = setting(False, "the next round starts from the personal models, as the papers' code does")
    weights: Literal["uniform", "size"] = setting("uniform", "how clients count in the average: equally, or by samples")

    def phases(self, server: Server, t: int) -> tuple[Phase, ...]:
        """Personalise when the result is carried over, or when it is looked at."""
        personal = self.personalise_units > 0 and (self.carry_over or server.evaluates(t))
        return (TRAIN, PERSONALISE) if personal else (TRAIN,)

    def start(self, server: Server) -> FedAvgState:
        """Start from the initial model."""
        return FedAvgState(server.initial)

    def rewards(self, server: Server, state: FedAvgState, t: int, phase: Phase) -> Rewards:
        """Hand the average to everybody, or let each client continue from its personal model."""
        nothing = torch.zeros(server.clients)
        if phase == PERSONALISE:
            work = server.work.times(self.personalise_units, phase)
            # without carry-over the next round starts from this same average, which travels only once
            kept = self.carry_over  # what is only looked at must leave no trace in the clients' optimisers
            return Rewards(state.parameters, work, download=None if kept else nothing, keeps_memory=kept)
        if self.carry_over and state.personal is not None:
            return Rewards(state.personal, server.work, download=nothing)
        return Rewards(state.parameters, server.work)

    def learn(
        self, server: Server, state: FedAvgState, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> FedAvgState:
        """Average the trained models, or keep them as personal ones."""
        if phase == PERSONALISE:
            return replace(state, personal=rewards.parameters + uploads.updates)
        if not bool(uploads.present.any()):
            return state
        weight = uploads.present.to(uploads.updates.dtype)
        if self.weights == "size":
            weight = weight * uploads.sizes.to(weight)
        weight = weight / weight.sum()
        begun = rewards.parameters if rewards.parameters.dim() == 1 else weight @ rewards.parameters
        robust = server.aggregation is not None and server.aggregation.name != "mean"
        step = mean_over_clients(uploads, server.aggregation) if robust else weight @ uploads.updates
        return replace(state, parameters=begun + step)

    def welcome(self, server: Server, state: FedAvgState, t: int) -> FedAvgState:
        """Give newcomers the average for a personal model."""
        if state.personal is None:
            return state
        new = state.parameters.expand(server.clients - len(state.personal), -1)
        return replace(state, personal=torch.cat([state.personal, new]))

    def delivered(self, server: Server, state: FedAvgState) -> Delivered:
        """Deliver the personal models, or the average where nothing is personalised."""
        return Delivered(state.parameters if state.personal is None else state.personal)
