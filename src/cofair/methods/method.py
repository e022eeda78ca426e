"""What every method is: settings, a typed state, and a few pure functions over them."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from cofair.engine.phases import TRAIN, Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.rules.growth import grown
from cofair.methods.server import Server

State = TypeVar("State")


class Method(ABC, Generic[State]):
    """A reward mechanism. Its subclasses are frozen dataclasses whose fields are the method's settings."""

    name: ClassVar[str]
    paper: ClassVar[str]
    needs_validation: ClassVar[bool] = False
    without_validation: ClassVar[str] = ""  # how it works without one, where it can: a sentence for users who have none
    needs_alone: ClassVar[bool] = False  # clients train alone before the first round; `server.alone()` has the models
    averages: ClassVar[bool] = False  # it joins updates by the server's aggregation: mean, median or trimmed mean

    def validates(self) -> bool:
        """Say whether the method, with its settings, needs a validation set at the server."""
        return self.needs_validation

    def notes(self, server: Server) -> list[str]:
        """Say what is to be known before the first round, in sentences; most methods have nothing to say."""
        return []

    def unwritten(self, contributions: Tensor | None = None) -> dict[str, list[float]]:
        """Return what was given in Python and no file can say, by name.

        Where contributions are known, with numbers by which it is recognised when a run is resumed.
        """
        return {}

    def rounds(self, asked: int) -> int:
        """Return how many of the rounds that the experiment asks for the method runs."""
        return asked

    def phases(self, server: Server, t: int) -> tuple[Phase, ...]:
        """Return the local trainings of round t, in order; most methods have one."""
        return (TRAIN,)

    @abstractmethod
    def start(self, server: Server) -> State:
        """Return the state before the first round."""

    @abstractmethod
    def rewards(self, server: Server, state: State, t: int, phase: Phase) -> Rewards:
        """Return what each client receives now; a pure read of the state."""

    @abstractmethod
    def learn(self, server: Server, state: State, rewards: Rewards, uploads: Uploads, t: int, phase: Phase) -> State:
        """Return the state after the uploads of this phase."""

    @abstractmethod
    def delivered(self, server: Server, state: State) -> Delivered:
        """Return the models that count as each client's reward now."""

    def reputation(self, state: State) -> Tensor | None:
        """Return what the server currently believes of each client (N,), if the method keeps that."""
        return None

    def welcome(self, server: Server, state: State, t: int) -> State:
        """Return the state with room for clients that join before round t; the server knows them already.

        They begin as everybody began. A method whose beginners hold more than a newcomer has earned says otherwise.
        """
        return grown(state, self.start(server))

    def faded(self, state: State, factor: Tensor) -> State:
        """Return the state with each client's reputation times a factor (N,), where that is not a contribution's."""
        return state
