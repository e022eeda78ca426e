"""Contract: the organiser states what a contribution deserves, and the server keeps that promise (our own method).

A reward curve says which accuracy a client is owed, given the accuracy A of the whole model; by default everybody gains
the same over training alone. Each round the server orders neurons by how seldom they were trained, as FedRAC does, and
by importance those trained about equally often, and gives each client the nested submodel whose validation accuracy is
closest to what it is owed. Updates weigh by what their clients bring. What is delivered is calibrated on the model as
it is then, never a submodel chosen for an earlier one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.protocol import Delivered
from cofair.errors import UsageError
from cofair.methods.families.submodels import SubmodelMethod, Submodels
from cofair.methods.registry import register
from cofair.methods.rules.calibration import calibrate
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
from cofair.scoring.importance import taylor
from cofair.scoring.nested import prefix_masks
from cofair.settings import setting

_RANKED_ON = 250  # validation samples, at most: more of them do not make a better order


@dataclass(frozen=True)
class Promised(Submodels):
    """Submodels, the accuracies (or shares of neurons) that clients are promised (N,), and those validated (N,)."""

    promised: Tensor
    validated: Tensor


@register
@dataclass(frozen=True)
class Contract(SubmodelMethod[Promised]):
    """Submodels that are as accurate as a stated reward curve promises."""

    name: ClassVar[str] = "contract"
    paper: ClassVar[str] = "our own"
    needs_validation: ClassVar[bool] = True
    without_validation: ClassVar[str] = 'With method.pays = "neurons" it promises shares of neurons and needs none.'

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
    pays: Literal["accuracy", "neurons"] = setting(
        "accuracy", "what the curve promises: accuracy, or a share of all neurons, which needs no validation set"
    )
    pack: int = setting(1, "neurons between two submodels", minimum=1)
    alike: float = setting(
        2.0, "width of the steps in which trainings of a neuron are counted, in rounds of all clients; 0: one by one",
        minimum=0,
    )  # fmt: skip
    power: float = setting(
        3.0,
        "a client's update weighs its contribution to this power in the mean of a parameter; 0: all alike",
        minimum=0,
    )
    fit: Literal["whole", "halves"] = setting(
        "whole", "samples that choose a submodel: all, or in turns one half, while the other half checks"
    )
    own_curve: Curve | None = None  # a function of contributions (N,) and A, in Python only

    def validates(self) -> bool:
        """Accuracies need a validation set, shares of neurons do not."""
        return self.pays == "accuracy"

    def notes(self, server: Server) -> list[str]:
        """Say how closely promises can be kept, and what fairness can be expected; a curve that is none is refused."""
        curve = self.owed(server)
        check_all(curve, server.contributions)
        if self.pays == "neurons" or server.metric != "accuracy":
            return []
        if not server.brings_accuracies:
            return [
                "Contributions are not measured as accuracies here, so that what the curve promises need not be one: "
                'curve = "proportional" takes shares of the largest, pays = "neurons" promises no accuracy.'
            ]
        expected = expectations(curve, server.contributions, self._chosen_on(server), server.tested_on)
        return [*expected, *filter(None, [inside_while(curve, server.contributions, server.names)])]

    def unwritten(self, contributions: Tensor | None = None) -> dict[str, list[float]]:
        """Return a curve given in Python by what it promises."""
        if self.own_curve is None:
            return {}
        return {"own_curve": [] if contributions is None else known_by(self.promise(), contributions)}

    def start(self, server: Server) -> Promised:
        """Check the promise, then hand out the whole model once."""
        check_all(self.owed(server), server.contributions)
        nothing = torch.zeros_like(server.contributions)
        return Promised(**vars(super().start(server)), promised=nothing, validated=nothing)

    def owed(self, server: Server) -> Curve:
        """Return the reward curve with its margin, where contributions and rewards are accuracies.

        A function of the organiser's own is taken at its word.
        """
        known = self.pays == "accuracy" and server.metric == "accuracy" and server.brings_accuracies
        if not known or not self.margin or self.own_curve is not None:
            return self.promise()
        return Inside(self.promise(), self.margin, self._chosen_on(server))

    def _chosen_on(self, server: Server) -> int:
        """Return how many validation samples choose a submodel."""
        samples = len(server.validation.samples)
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
        """Let larger contributors weigh more: most train most of the model here, whatever their data are worth."""
        most = float(server.contributions.max())
        return (server.contributions / most).clamp(min=0) ** self.power if self.power and most > 0 else None

    def grant(self, server: Server, state: Promised, t: int) -> Promised:
        """Order the neurons, and find for each client the submodel that meets its promise."""
        order = self.order(server, state.parameters, state.frequency, t)
        if self.pays == "neurons":
            shares = self.promise()(server.contributions, 1.0)
            sizes = sizes_of(shares, server.contributions, len(order), self.pack)
            return replace(state, granted=prefix_masks(order, sizes), promised=shares)
        scorer, checked_by = server.validation, None
        if self.fit == "halves":
            scorer, checked_by = scorer.halves() if t % 2 else scorer.halves()[::-1]
        curve = self.owed(server)
        found = calibrate(
            scorer, state.parameters, order, server.contributions, curve, self.pack, checked_by,
            inside=isinstance(curve, Inside),
        )  # fmt: skip
        return replace(state, granted=found.masks, promised=found.promised, validated=found.validated)

    def order(self, server: Server, parameters: Tensor, frequency: Tensor, t: int) -> Tensor:
        """Return the neurons (K,) for round t: the least trained first, then the least important.

        With unimportant neurons first it takes more of them to be as accurate as promised: clients train more for the
        same reward.
        """
        if self.pays == "neurons" or not self.alike:
            return frequency.argsort(stable=True)
        importance = taylor(server.validation.thinned(_RANKED_ON), parameters)
        ranked = importance.argsort(stable=True)
        trained = (frequency / (self.alike * server.clients)).floor()
        return ranked[trained[ranked].argsort(stable=True)]

    def delivered(self, server: Server, state: Promised) -> Delivered:
        """Deliver the submodels that were granted for the next round: they were calibrated on the current model."""
        if self.pays == "neurons":
            return Delivered(state.parameters, state.granted)
        return Delivered(state.parameters, state.granted, state.promised, state.validated)

    def reputation(self, state: Promised) -> Tensor:
        """Return what is promised: what the server believes that each client deserves."""
        return state.promised


def sizes_of(shares: Tensor, contributions: Tensor, neurons: int, pack: int) -> Tensor:
    """Return how many neurons (N,) shares of them are, in packs, at least one; everything for the best contributor."""
    counts = (shares * neurons / pack).round().long().mul(pack).clamp(pack, neurons)
    return torch.where(contributions == contributions.max(), neurons, counts)
