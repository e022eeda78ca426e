"""What methods share whose rewards are submodels of one model, averaged over the clients that hold a parameter."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.errors import UsageError
from cofair.methods.method import Method
from cofair.methods.rules.aggregation import mean_over_clients, mean_over_holders
from cofair.methods.server import Server
from cofair.neurons.map import NeuronMap
from cofair.settings import setting


@dataclass(frozen=True)
class Submodels:
    """The server's model, and which clients hold which of its neurons.

    `granted` (N, K) are the masks of the next round, `handed` those of the round that was just learned from.
    `record` (K,) is what a method remembers of each neuron: its importance, or how often it was trained; `trained` (K,)
    is how many clients that answered held each neuron in that round.
    """

    parameters: Tensor
    granted: Tensor
    handed: Tensor
    record: Tensor
    reputation: Tensor
    trained: Tensor


@dataclass(frozen=True)
class SubmodelMethod(Method[Submodels]):
    """Everybody holds some neurons of one model; each parameter is averaged over those who hold it."""

    averages: ClassVar[bool] = True

    count: Literal["nonzero", "mask"] = setting(
        "nonzero",
        "which clients count in the mean of a parameter: those whose update is not zero (code), or holders (paper)",
    )
    without_aggregation: bool = setting(False, "ablation: the plain mean over all clients instead of over holders")

    def start(self, server: Server) -> Submodels:
        """Everybody holds everything in the first round."""
        K = neurons_of(server, self.name).count
        device = server.initial.device
        everything = torch.ones(server.clients, K, dtype=torch.bool, device=device)
        record = torch.zeros(K, dtype=torch.float64, device=device)
        nothing = torch.zeros_like(server.contributions)
        return Submodels(server.initial, everything, everything, record, nothing, torch.zeros_like(record))

    def rewards(self, server: Server, state: Submodels, t: int, phase: Phase) -> Rewards:
        """Hand out the submodels that were granted."""
        return Rewards(state.parameters, server.work, state.granted)

    def learn(
        self, server: Server, state: Submodels, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> Submodels:
        """Average the updates, then grant the submodels of the next round."""
        assert rewards.neuron_masks is not None
        if self.without_aggregation:
            mean = mean_over_clients(uploads, server.aggregation)
        else:
            holds = neurons_of(server, self.name).parameter_mask(rewards.neuron_masks) if self.count == "mask" else None
            mean = mean_over_holders(uploads, holds, self.count, server.aggregation, self.weights(server))
        trained = (rewards.neuron_masks.bool() & uploads.present[:, None]).sum(0).to(state.record)
        learned = replace(state, parameters=state.parameters + mean, handed=rewards.neuron_masks, trained=trained)
        return self.grant(server, learned, t + 1)

    def weights(self, server: Server) -> Tensor | None:
        """Return what each client's update weighs in the mean of a parameter (N,); None: all alike."""
        return None

    @abstractmethod
    def grant(self, server: Server, state: Submodels, t: int) -> Submodels:
        """Return the state with the submodels, reputations and the record for round t."""

    def welcome(self, server: Server, state: Submodels, t: int) -> Submodels:
        """Grant newcomers what they have earned; everything, as in the first round, would be a gift."""
        larger = super().welcome(server, state, t)
        nothing, before = torch.zeros_like(larger.granted), len(state.granted)
        granted, handed = nothing.clone(), nothing
        granted[:before], handed[:before] = state.granted, state.handed
        # what was trained is counted already
        own = replace(larger, granted=granted, handed=handed, trained=torch.zeros_like(state.trained))
        return self.grant(server, own, t)

    def delivered(self, server: Server, state: Submodels) -> Delivered:
        """Deliver the new model under the masks that were handed out, as the papers' code tests it."""
        return Delivered(state.parameters, state.handed)

    def reputation(self, state: Submodels) -> Tensor:
        """Return the reputations."""
        return state.reputation


def neurons_of(server: Server, method: str) -> NeuronMap:
    """Return the model's neurons, or say that this method needs some."""
    if server.neurons is None:
        raise UsageError(
            f"The method '{method}' hands out submodels, but the model has no neuron that could be left out: "
            "use a stack of layers with hidden units, or declare neurons()."
        )
    return server.neurons


def exponential_share(contributions: Tensor, beta: float) -> Tensor:
    """Return 100 · exp(β c_i) / max_j exp(β c_j), which no β overflows."""
    return 100 * torch.exp(beta * (contributions - contributions.max()))
