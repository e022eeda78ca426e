"""What methods share whose rewards are submodels of one model, averaged over the clients that hold a parameter."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar, cast

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
    `frequency` (K,) counts how often each neuron was trained; the whole models of round 1 are not counted.
    """

    parameters: Tensor
    granted: Tensor
    handed: Tensor
    frequency: Tensor


@dataclass(frozen=True)
class ReputedSubmodels(Submodels):
    """Submodels that follow from reputations (N,)."""

    reputation: Tensor


State = TypeVar("State", bound=Submodels)


@dataclass(frozen=True)
class SubmodelMethod(Method[State]):
    """Everybody holds some neurons of one model; each parameter is averaged over those who hold it."""

    averages: ClassVar[bool] = True

    count: Literal["nonzero", "mask"] = setting(
        "nonzero",
        "which clients count in the mean of a parameter: those whose update is not zero (code), or holders (paper)",
    )
    without_aggregation: bool = setting(False, "ablation: the plain mean over all clients instead of over holders")

    def start(self, server: Server) -> State:
        """Everybody holds everything in the first round; a method whose state holds more adds that to this one."""
        K = neurons_of(server, self.name).count
        everything = torch.ones(server.clients, K, dtype=torch.bool, device=server.initial.device)
        frequency = torch.zeros(K, dtype=torch.float64, device=server.initial.device)
        return cast(State, Submodels(server.initial, everything, everything, frequency))

    def rewards(self, server: Server, state: State, t: int, phase: Phase) -> Rewards:
        """Hand out the submodels that were granted."""
        return Rewards(state.parameters, server.work, state.granted)

    def learn(self, server: Server, state: State, rewards: Rewards, uploads: Uploads, t: int, phase: Phase) -> State:
        """Average the updates, then grant the submodels of the next round."""
        assert rewards.neuron_masks is not None
        if self.without_aggregation:
            mean = mean_over_clients(uploads, server.aggregation)
        else:
            holds = neurons_of(server, self.name).parameter_mask(rewards.neuron_masks) if self.count == "mask" else None
            mean = mean_over_holders(uploads, holds, self.count, server.aggregation, self.weights(server))
        frequency = state.frequency
        if t > 1:
            frequency = frequency + (rewards.neuron_masks.bool() & uploads.present[:, None]).sum(0).to(frequency)
        learned = replace(
            state, parameters=state.parameters + mean, handed=rewards.neuron_masks, frequency=frequency
        )  # fmt: skip
        return self.grant(server, learned, t + 1)

    def weights(self, server: Server) -> Tensor | None:
        """Return what each client's update weighs in the mean of a parameter (N,); None: all alike."""
        return None

    @abstractmethod
    def grant(self, server: Server, state: State, t: int) -> State:
        """Return the state with the submodels for round t, and what they follow from."""

    def welcome(self, server: Server, state: State, t: int) -> State:
        """Grant newcomers what they have earned; everything, as in the first round, would be a gift."""
        larger = super().welcome(server, state, t)
        nothing, before = torch.zeros_like(larger.granted), len(state.granted)
        granted, handed = nothing.clone(), nothing
        granted[:before], handed[:before] = state.granted, state.handed
        return self.grant(server, replace(larger, granted=granted, handed=handed), t)

    def delivered(self, server: Server, state: State) -> Delivered:
        """Deliver the new model under the masks that were handed out, as the papers' code tests it."""
        return Delivered(state.parameters, state.handed)


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
