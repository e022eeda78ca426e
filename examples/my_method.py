"""A method of one's own: FedAvg in which everybody's reward is diluted by its rank.

    cofair compare --load examples/my_method.py --methods fedavg,ranked

The best client receives the average model; every other one a mixture of the average and the initial model.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from cofair import Delivered, Method, Phase, Rewards, Server, Uploads, mean_over_clients, register, setting


@dataclass(frozen=True)
class RankedState:
    parameters: Tensor  # the average model (D,)


@register
@dataclass(frozen=True)
class Ranked(Method[RankedState]):
    """The average for the best client, less and less of it down the ranks."""

    name: ClassVar[str] = "ranked"
    paper: ClassVar[str] = "an example"

    least: float = setting(0.5, "how much of the average the last client receives", minimum=0, maximum=1)

    def start(self, server: Server) -> RankedState:
        return RankedState(server.initial)

    def rewards(self, server: Server, state: RankedState, t: int, phase: Phase) -> Rewards:
        return Rewards(state.parameters, server.work)

    def learn(
        self, server: Server, state: RankedState, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> RankedState:
        return replace(state, parameters=state.parameters + mean_over_clients(uploads))

    def delivered(self, server: Server, state: RankedState) -> Delivered:
        c = server.contributions
        rank = (c[None, :] > c[:, None]).sum(1).to(state.parameters)  # how many bring more: 0 for the best
        share = 1 - (1 - self.least) * rank / rank.max().clamp(min=1)
        return Delivered(server.initial + share[:, None] * (state.parameters - server.initial))
