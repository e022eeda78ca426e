"""Contract: the organiser states what a contribution deserves, and the server keeps that promise (our own method).

A reward curve says which accuracy a client is owed, given the accuracy A of the whole model; by default everybody gains
the same over training alone. Each client has a model of its own that trails the server's at the distance that meets its
promise, so that the promise also holds for a client that keeps everything it was ever handed. For weak devices
`hands = "submodels"` gives submodels instead, which are fair only among clients that forget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.errors import UsageError
from cofair.methods.contract_submodels import PromisedSubmodels, RollingSubmodels
from cofair.methods.contract_trailing import Trailing, TrailingModels
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.rules.promises import (
    BcfMiddle,
    Checked,
    Curve,
    EqualGain,
    Inside,
    Proportional,
    check_all,
    expectations,
    inside_while,
    known_by,
    through,
)
from cofair.methods.server import Server
from cofair.settings import setting

State = Trailing | PromisedSubmodels


@register
@dataclass(frozen=True)
class Contract(Method[State]):
    """Models that are as accurate as a stated reward curve promises."""

    name: ClassVar[str] = "contract"
    paper: ClassVar[str] = "our own"
    needs_validation: ClassVar[bool] = True
    without_validation: ClassVar[str] = (
        'With method.hands = "submodels" and method.pays = "neurons" it promises shares of neurons and needs none.'
    )
    averages: ClassVar[bool] = True

    curve: Literal["equal_gain", "proportional", "bcf_middle", "points"] = setting(
        "equal_gain",
        "what a contribution deserves: the same gain for all, a share c / c_max, the middle of the band, or `points`",
    )
    kappa: float = setting(1.0, "κ of equal_gain: accuracy taken off for each point of contribution missing", minimum=0)
    points: tuple[float, ...] = setting((0.0, 0.0, 1.0, 1.0), "points: share of c_max, share of A, and so on")
    margin: float = setting(
        1.0,
        "standard deviations of an accuracy on the validation set that promises stay inside the α-BCF band; 0: as the "
        "curve says",
        minimum=0,
    )
    hands: Literal["trailing", "submodels"] = setting(
        "trailing",
        "what clients are handed: a whole model of their own that trails the server's, or submodels (for weak devices; "
        "fair only among clients that forget)",
    )
    power: float = setting(3.0, "a client's update weighs its contribution to this power; 0: all alike", minimum=0)
    freshness: tuple[float, ...] = setting(
        (0.0, 4.0, 16.0),
        "trailing: an update weighs validated / A of its client's model to one of these powers, whichever leads to the "
        "best model in the round",
        minimum=0,
    )
    strides: tuple[float, ...] = setting(
        (0.25, 1.0, 3.0),
        "trailing: the server's model goes so many times as far as the mean of the updates, whichever leads to the "
        "best model in the round",
        minimum=0,
    )
    first: Literal["rows", "largest", "mixed"] = setting(
        "rows",
        "trailing: what is brought up to date first: rows of weights at random, or the entries with the largest "
        "differences, or mixed (differences times random)",
    )
    guarded: Literal["rows", "largest", "mixed"] = setting(
        "mixed", "trailing: the same for clients whose own training would repair their models"
    )
    tolerance: float = setting(
        0.0, "trailing: these are clients whose own training makes a model better by more accuracy than this"
    )
    every: int = setting(2, "trailing: rounds between two updates of a client's model", minimum=1)
    looks: int = setting(3, "trailing: candidates by which it is found how much to send", minimum=1)
    samples: int = setting(
        10_000, "trailing: validation samples that models are calibrated on, at most, always the same", minimum=1
    )
    pays: Literal["accuracy", "neurons"] = setting(
        "accuracy",
        "submodels: what the curve promises: accuracy, or a share of all neurons, which needs no validation set",
    )
    pack: int = setting(1, "submodels: neurons between two of them", minimum=1)
    alike: float = setting(
        2.0,
        "submodels: width of the steps in which trainings of a neuron are counted, in rounds of all clients; 0: one by "
        "one",
        minimum=0,
    )
    fit: Literal["whole", "halves"] = setting(
        "whole", "submodels: samples that choose: all, or in turns one half, while the other half checks"
    )
    count: Literal["nonzero", "mask"] = setting(
        "nonzero", "submodels: who counts in the mean of a parameter: those whose update is not zero, or all holders"
    )
    without_aggregation: bool = setting(
        False, "submodels: ablation: the plain mean over all clients instead of over holders"
    )
    own_curve: Curve | None = None  # a function of contributions (N,) and A, in Python only

    @cached_property
    def mechanism(self) -> Method[Any]:
        """Return what decides on each client's model."""
        if self.hands == "trailing":
            return TrailingModels(contract=self)
        return RollingSubmodels(count=self.count, without_aggregation=self.without_aggregation, contract=self)

    def validates(self) -> bool:
        """Accuracies need a validation set, shares of neurons do not."""
        return self.hands == "trailing" or self.pays == "accuracy"

    def notes(self, server: Server) -> list[str]:
        """Say how closely promises can be kept, and what fairness can be expected; a curve that is none is refused."""
        self._check()
        curve = self.owed(server)
        check_all(curve, server.contributions)
        if self.pays == "neurons" or server.metric != "accuracy":
            return []
        if not server.brings_accuracies:
            return [
                "Contributions are not measured as accuracies here, so that what the curve promises need not be one: "
                'curve = "proportional" takes shares of the largest, and submodels can be paid for in neurons.'
            ]
        expected = expectations(curve, server.contributions, self._chosen_on(server), server.tested_on)
        return [*expected, *filter(None, [inside_while(curve, server.contributions, server.names)])]

    def _check(self) -> None:
        if self.hands == "trailing" and self.pays == "neurons":
            raise UsageError('method.pays = "neurons" is for submodels: set method.hands = "submodels" too.')
        if not self.freshness:
            raise UsageError("method.freshness is empty: give one power at least, such as [0].")
        if not self.strides:
            raise UsageError("method.strides is empty: give one at least, such as [1].")

    def unwritten(self, contributions: Tensor | None = None) -> dict[str, list[float]]:
        """Return a curve given in Python by what it promises."""
        if self.own_curve is None:
            return {}
        return {"own_curve": [] if contributions is None else known_by(self.promise(), contributions)}

    def start(self, server: Server) -> State:
        """Check the promise, then hand out the whole initial model."""
        self._check()
        check_all(self.owed(server), server.contributions)
        state: State = self.mechanism.start(server)
        return state

    def rewards(self, server: Server, state: State, t: int, phase: Phase) -> Rewards:
        """Hand out what the promises allow."""
        return self.mechanism.rewards(server, state, t, phase)

    def learn(self, server: Server, state: State, rewards: Rewards, uploads: Uploads, t: int, phase: Phase) -> State:
        """Move the server's model, then calibrate the clients' on it."""
        after: State = self.mechanism.learn(server, state, rewards, uploads, t, phase)
        return after

    def owed(self, server: Server) -> Curve:
        """Return the reward curve with its margin, where contributions and rewards are accuracies.

        A function of the organiser's own is taken at its word.
        """
        known = self.pays == "accuracy" and server.metric == "accuracy" and server.brings_accuracies
        if not known or not self.margin or self.own_curve is not None:
            return self.promise()
        return Inside(self.promise(), self.margin, self._chosen_on(server))

    def _chosen_on(self, server: Server) -> int:
        """Return how many validation samples choose a model."""
        samples = len(server.validation.samples)
        if self.hands == "trailing":
            return min(self.samples, samples)
        return samples if self.fit == "whole" else (samples + 1) // 2

    def promise(self) -> Curve:
        """Return the reward curve as it is stated."""
        if self.own_curve is not None:
            if not callable(self.own_curve):
                raise UsageError(f"own_curve must be a function of contributions and A, but is {self.own_curve!r}.")
            return Checked(self.own_curve)
        curves: dict[str, Callable[[], Curve]] = {
            "equal_gain": lambda: EqualGain(self.kappa),
            "proportional": Proportional,
            "bcf_middle": BcfMiddle,
            "points": lambda: through(self.points),
        }
        return curves[self.curve]()

    def weights(self, server: Server) -> Tensor | None:
        """Return what each client's contribution lets its update weigh (N,); None: all alike."""
        most = float(server.contributions.max())
        return (server.contributions / most).clamp(min=0) ** self.power if self.power and most > 0 else None

    def delivered(self, server: Server, state: State) -> Delivered:
        """Deliver what was calibrated on the model as it is now."""
        return self.mechanism.delivered(server, state)

    def welcome(self, server: Server, state: State, t: int) -> State:
        """Give newcomers what they have earned."""
        larger: State = self.mechanism.welcome(server, state, t)
        return larger

    def reputation(self, state: State) -> Tensor:
        """Return what is promised: what the server believes that each client deserves."""
        return state.promised
