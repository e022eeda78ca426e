"""Training alone: what each client can do without the others.

Every client trains the common initial model on its own data, once and until it stops rising (or for a fixed number of
epochs, a setting of the contribution). The accuracy of the result is the contribution c_i that the papers of
collaborative fairness compare rewards with; as a method it is the row that a federation has to beat.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.server import Server


@dataclass(frozen=True)
class StandaloneState:
    """The clients' own models (N, D)."""

    parameters: Tensor


@register
@dataclass(frozen=True)
class Standalone(Method[StandaloneState]):
    """Every client keeps the model it trained alone; nothing is exchanged."""

    name: ClassVar[str] = "standalone"
    paper: ClassVar[str] = "no federation: local training only"
    needs_alone: ClassVar[bool] = True

    def rounds(self, asked: int) -> int:
        """Look once: the models do not change."""
        return 1

    def phases(self, server: Server, t: int) -> tuple[Phase, ...]:
        """Train nothing in a round: the server has the models that clients trained alone."""
        return ()

    def start(self, server: Server) -> StandaloneState:
        """Take the models that clients trained alone."""
        return StandaloneState(server.alone())

    def rewards(self, server: Server, state: StandaloneState, t: int, phase: Phase) -> Rewards:
        """Hand out nothing new: everybody has its own model."""
        return Rewards(state.parameters, server.work)

    def learn(
        self, server: Server, state: StandaloneState, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> StandaloneState:
        """Learn nothing from anybody."""
        return state

    def delivered(self, server: Server, state: StandaloneState) -> Delivered:
        """Deliver to each client its own model."""
        return Delivered(state.parameters)
