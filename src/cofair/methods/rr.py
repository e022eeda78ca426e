"""RR: round robin, a baseline of CGSV (Xu et al., NeurIPS 2021), after Shokri and Shmatikov (CCS 2015).

Clients take turns in a fixed cycle. The client whose turn it is downloads the whole server model, trains it on its own
data and uploads the result, which is the server's model for the next one. Its reward is the model that it left with:
rewards differ only by when a client had its turn.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class RoundRobin:
    """The server's model (D,), and the model with which each client left its last turn (N, D)."""

    parameters: Tensor
    models: Tensor


@register
@dataclass(frozen=True)
class RR(Method[RoundRobin]):
    """One client after another trains the server's model.

    The cycle follows clients' names. A client that is absent when its turn comes loses that turn; one that never had
    a turn holds the initial model.
    """

    name: ClassVar[str] = "rr"
    paper: ClassVar[str] = "baseline of Xu et al., NeurIPS 2021"

    turns: int = setting(1, "clients that take their turn in a round, one after another", minimum=1)

    def phases(self, server: Server, t: int) -> tuple[Phase, ...]:
        """Train one client per phase."""
        return tuple(Phase(f"turn {k}") for k in range(1, self.turns + 1))

    def start(self, server: Server) -> RoundRobin:
        """Everybody has the initial model."""
        return RoundRobin(server.initial, server.initial.repeat(server.clients, 1))

    def rewards(self, server: Server, state: RoundRobin, t: int, phase: Phase) -> Rewards:
        """Hand the whole model to the client whose turn it is."""
        turn = (t - 1) * self.turns + self.phases(server, t).index(phase)
        its = server.places().to(server.sizes.device) == turn % server.clients
        return Rewards(state.parameters, replace(server.work, phase=phase), participants=its)

    def learn(
        self, server: Server, state: RoundRobin, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> RoundRobin:
        """Take over the model that was trained."""
        trained = state.parameters + uploads.updates.sum(0)  # only one of them is not zero
        return RoundRobin(trained, state.models.where(~uploads.present[:, None], trained))

    def delivered(self, server: Server, state: RoundRobin) -> Delivered:
        """Deliver to each client the model with which it left its last turn."""
        return Delivered(state.models)
