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
        scorer, order = server.validation, frequency.argsort(stable=True)  # the least trained first
        calibration = calibrate(scorer, state.parameters, order, server.contributions, self.promise(), self.pack)
        return replace(state, granted=calibration.masks, reputation=calibration.promised)

    def delivered(self, server: Server, state: Submodels) -> Delivered:
        """Deliver the current model: what was granted for the next round is calibrated on it, here more finely."""
        scorer, order = server.validation, state.record.argsort(stable=True)
        calibration = calibrate(
            scorer, state.parameters, order, server.contributions, self.promise(), self.pack_delivered, state.granted
        )
        return Delivered(state.parameters, calibration.masks, calibration.promised, calibration.validated)


@dataclass(frozen=True)
class Calibration:
    """Masks (N, K) of the submodels chosen, the accuracies promised (N,) and those validated (N,)."""

    masks: Tensor
    promised: Tensor
    validated: Tensor


def calibrate(
    scorer: Scorer, base: Tensor, order: Tensor, contributions: Tensor, curve: Curve, pack: int,
    granted: Tensor | None = None,
) -> Calibration:  # fmt: skip
    """Find for each client the prefix of an order (K,) whose accuracy is closest to its promise.

    Prefixes are scored coarsely first, then ever more finely towards each promise, so that a wide model costs little
    more than a small one; with prefixes `granted` (N, K) before, only next to these. Who brings most gets everything.
    """
    K = len(order)
    step = pack * (-(-K // (_COARSE * pack)) if granted is None else 2)
    known = range(step, K, step) if granted is None else granted.sum(1).tolist()
    accuracy = _scored(scorer, base, order, {*known, K}, {})
    promised = curve(contributions, accuracy[K])
    while step > pack:
        finer = pack * max(1, step // (_FINER * pack))
        wanted = {size for owed in promised.tolist() for size in _towards(accuracy, owed, step, finer) if size < K}
        accuracy |= _scored(scorer, base, order, {size for size in wanted if size >= pack}, accuracy)
        step = finer
    best, brought, owed = float(contributions.max()), contributions.tolist(), promised.tolist()
    counts = [K if c == best else _closest(accuracy, a) for c, a in zip(brought, owed, strict=True)]
    validated = torch.tensor([accuracy[count] for count in counts], dtype=promised.dtype, device=promised.device)
    return Calibration(prefix_masks(order, torch.tensor(counts)), promised, validated)


def _scored(scorer: Scorer, base: Tensor, order: Tensor, sizes: set[int], known: dict[int, float]) -> dict[int, float]:
    """Return the accuracies of prefixes that are not known yet."""
    fresh = sorted(size for size in sizes if size not in known)
    if not fresh:
        return {}
    return dict(zip(fresh, scorer.prefixes(base, order, torch.tensor(fresh)).metric.double().tolist(), strict=True))


def _towards(accuracy: dict[int, float], owed: float, step: int, finer: int) -> list[int]:
    """Return sizes between the best fit so far and the next one on the side of the promise."""
    best = _closest(accuracy, owed)
    side = 1 if accuracy[best] < owed else -1
    return [best + side * shift for shift in range(finer, step, finer)]


def _closest(accuracy: dict[int, float], owed: float) -> int:
    """Return the size whose accuracy is closest to what is owed, the larger of equals."""
    return min(accuracy, key=lambda size: (abs(accuracy[size] - owed), -size))
