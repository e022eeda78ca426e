"""Contract: the organiser states what a contribution deserves, and the server keeps that promise (our own method).

A reward curve says which accuracy a client is owed, given the accuracy A of the whole model; by default everybody gains
the same over training alone. Each round the server orders neurons by how seldom they were trained, as FedRAC does, and
gives each client the nested submodel whose validation accuracy is closest to what it is owed. What is delivered is
calibrated on the model as it is then, never a submodel chosen for an earlier one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.exchange import Delivered
from cofair.engine.scoring import Scorer
from cofair.methods.method import Server
from cofair.methods.promises import BcfMiddle, Curve, EqualGain, Proportional, check, table
from cofair.methods.registry import register
from cofair.methods.submodels import SubmodelMethod, Submodels
from cofair.neurons.submodels import prefix_masks
from cofair.settings import setting

_COARSE = 24  # submodels that are scored first; the search goes on around the best of them
_FINER = 4  # by which each next look is finer


@register
@dataclass(frozen=True)
class Contract(SubmodelMethod):
    """Submodels that are as accurate as a stated reward curve promises."""

    name: ClassVar[str] = "contract"
    paper: ClassVar[str] = "our own"
    needs_validation: ClassVar[bool] = True

    curve: Literal["equal_gain", "proportional", "bcf_middle", "points"] = setting(
        "equal_gain", "what a contribution deserves: the same gain for all, a share c / c_max, the middle of the band"
    )
    kappa: float = setting(1.0, "κ of equal_gain: accuracy taken off for each point of contribution missing", minimum=0)
    points: tuple[float, ...] = setting((0.0, 0.0, 1.0, 1.0), "points: share of c_max, share of A, and so on")
    pack: int = setting(4, "neurons between two submodels that clients train", minimum=1)
    pack_delivered: int = setting(2, "neurons between two submodels that are delivered", minimum=1)
    own_curve: Curve | None = None  # a function of contributions (N,) and A, in Python only

    def start(self, server: Server) -> Submodels:
        """Check the promise, then hand out the whole model once."""
        for accuracy in (float(server.contributions.max()), 1.0):
            check(self.promise(), server.contributions, accuracy)
        return super().start(server)

    def promise(self) -> Curve:
        """Return the reward curve."""
        if self.own_curve is not None:
            return self.own_curve
        curves: dict[str, Callable[[], Curve]] = {
            "equal_gain": lambda: EqualGain(self.kappa),
            "proportional": Proportional,
            "bcf_middle": BcfMiddle,
            "points": lambda: table(self.points),
        }
        return curves[self.curve]()

    def grant(self, server: Server, state: Submodels, t: int) -> Submodels:
        """Order the neurons, and find for each client the submodel that meets its promise."""
        frequency = state.record + state.trained if t > 2 else state.record  # whole models are not counted
        state = replace(state, record=frequency)
        calibration = self.calibrated(server, state, self.pack)
        return replace(state, granted=calibration.masks, reputation=calibration.promised)

    def delivered(self, server: Server, state: Submodels) -> Delivered:
        """Deliver the current model, calibrated now and more finely."""
        calibration = self.calibrated(server, state, self.pack_delivered)
        return Delivered(state.parameters, calibration.masks, calibration.promised, calibration.validated)

    def calibrated(self, server: Server, state: Submodels, pack: int) -> "Calibration":
        """Return the nested submodels of the current model that meet the promises."""
        order = state.record.argsort(stable=True)  # the least trained first
        return calibrate(server.validation, state.parameters, order, server.contributions, self.promise(), pack)


@dataclass(frozen=True)
class Calibration:
    """Masks (N, K) of the submodels chosen, the accuracies promised (N,) and those validated (N,)."""

    masks: Tensor
    promised: Tensor
    validated: Tensor


def calibrate(
    scorer: Scorer, base: Tensor, order: Tensor, contributions: Tensor, curve: Curve, pack: int
) -> Calibration:
    """Find for each client the prefix of an order (K,) whose accuracy is closest to its promise.

    Prefixes are scored coarsely first, then ever more finely around what fits each client best, so that a wide model
    costs little more than a small one. Who brings most gets everything.
    """
    K = len(order)
    step = max(pack, -(-K // _COARSE))
    sizes = sorted({*range(step, K, step), K})
    accuracy = dict(zip(sizes, _accuracies(scorer, base, order, sizes), strict=True))
    promised = curve(contributions, accuracy[K])
    owed = promised.tolist()
    while step > pack:
        finer = max(pack, step // _FINER)
        near = {_closest(accuracy, a) + shift for a in set(owed) for shift in range(-step + finer, step, finer)}
        fresh = sorted(size for size in near if pack <= size < K and size not in accuracy)
        accuracy.update(zip(fresh, _accuracies(scorer, base, order, fresh), strict=True))
        step = finer
    best = float(contributions.max())
    counts = [K if c == best else _closest(accuracy, a) for c, a in zip(contributions.tolist(), owed, strict=True)]
    validated = torch.tensor([accuracy[count] for count in counts], dtype=promised.dtype, device=promised.device)
    return Calibration(prefix_masks(order, torch.tensor(counts)), promised, validated)


def _accuracies(scorer: Scorer, base: Tensor, order: Tensor, sizes: list[int]) -> list[float]:
    if not sizes:
        return []
    scores: list[float] = scorer.prefixes(base, order, torch.tensor(sizes)).metric.double().tolist()
    return scores


def _closest(accuracy: dict[int, float], owed: float) -> int:
    """Return the size whose accuracy is closest to what is owed, the larger of equals."""
    return min(accuracy, key=lambda size: (abs(accuracy[size] - owed), -size))
