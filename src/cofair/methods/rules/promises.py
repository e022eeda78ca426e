"""Reward curves: what accuracy a contribution deserves, given the accuracy of the whole model.

A curve takes contributions c (N,) and the accuracy A of the whole model and returns promised accuracies (N,). It must
give more for a larger contribution, and the whole model for the largest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from cofair import metrics
from cofair.errors import UsageError

Curve = Callable[[Tensor, float], Tensor]
_ROUNDING = 1e-6
_OF_95 = 1.96  # standard deviations that 95 of 100 normal errors stay within
_LOOKED_AT = 20  # accuracies of the whole model for which a curve is checked before training


@dataclass(frozen=True)
class EqualGain:
    """a* = A − κ (c_max − c): with κ = 1 everybody gains A − c_max over training alone."""

    kappa: float = 1.0

    def __call__(self, contributions: Tensor, accuracy: float) -> Tensor:
        """Return what is promised."""
        return accuracy - self.kappa * (contributions.max() - contributions)


@dataclass(frozen=True)
class Proportional:
    """a* = A c / c_max."""

    def __call__(self, contributions: Tensor, accuracy: float) -> Tensor:
        """Return what is promised."""
        return accuracy * _share(contributions)


@dataclass(frozen=True)
class BcfMiddle:
    """The middle of the α-BCF band: halfway between c and ((1 − α) c / c_max + α) A."""

    alpha: float = 0.5

    def __call__(self, contributions: Tensor, accuracy: float) -> Tensor:
        """Return what is promised."""
        share = _share(contributions)
        upper = ((1 - self.alpha) * share + self.alpha) * accuracy
        middle = ((contributions + upper) / 2).clamp(max=accuracy)  # a young model may be worse than some alone
        return torch.where(share == 1, accuracy, middle)


@dataclass(frozen=True)
class ThroughPoints:
    """Points (c / c_max, a* / A), joined by straight lines."""

    points: tuple[tuple[float, float], ...]

    def __call__(self, contributions: Tensor, accuracy: float) -> Tensor:
        """Return what is promised."""
        x, y = zip(*self.points, strict=True)
        share = np.interp(_share(contributions).cpu().numpy(), x, y)
        return accuracy * torch.as_tensor(share).to(contributions)


def through(flat: Sequence[float]) -> ThroughPoints:
    """Return the curve through points given as share of c, share of A, share of c, …"""
    pairs = tuple(zip(flat[::2], flat[1::2], strict=False))
    if len(flat) % 2 or len(pairs) < 2 or any(b[0] <= a[0] or b[1] < a[1] for a, b in pairwise(pairs)):
        raise UsageError(
            "points must be pairs of numbers (share of c, share of A), at least two, the shares of c rising and those "
            "of A not falling."
        )
    return ThroughPoints(pairs)


@dataclass(frozen=True)
class Checked:
    """A curve given in Python, checked whenever it is called."""

    curve: Curve

    def __call__(self, contributions: Tensor, accuracy: float) -> Tensor:
        """Return what is promised, or say why it is no promise."""
        return check(self.curve, contributions, accuracy)


@dataclass(frozen=True)
class Inside:
    """What a curve promises, low enough that noise does not lift a reward above the α-BCF band.

    A promise inside the band stays `margin` standard deviations of an accuracy on `samples` samples below its upper
    bound, but not below the middle of the band. A promise outside the band, and the whole model for the best
    contributor, stay unchanged.
    """

    curve: Curve
    margin: float
    samples: int

    def __call__(self, contributions: Tensor, accuracy: float) -> Tensor:
        """Return what is promised."""
        promised = self.curve(contributions, accuracy)
        lower, upper = band(contributions, promised)
        safe = torch.maximum(upper - self.margin * deviation(promised, self.samples), (lower + upper) / 2)
        lowered = (promised > lower) & (promised <= upper) & (contributions < contributions.max())
        kept = torch.where(lowered, torch.minimum(promised, safe), promised)
        order = contributions.argsort(stable=True)
        rising = kept[order].cummax(0).values  # smaller contributors may be outside and promised more than is safe
        return torch.empty_like(kept).index_copy_(0, order, rising)


def band(contributions: Tensor, promised: Tensor, alpha: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return the α-BCF bounds (N,) of each client, where the best are promised the whole model."""
    lower, upper = metrics.alpha_bounds(contributions, promised, alpha)
    return torch.as_tensor(lower.copy()).to(promised), torch.as_tensor(upper).to(promised)


def check_all(curve: Curve, contributions: Tensor) -> None:
    """Refuse a curve that is wrong for some accuracy of the whole model: a young model is worse than many alone."""
    for part in range(1, _LOOKED_AT + 1):
        check(curve, contributions, part / _LOOKED_AT)


def check(curve: Curve, contributions: Tensor, accuracy: float) -> Tensor:
    """Return what a curve promises; refuse no finite number for a client, less for more, or not A for the best."""
    promised = curve(contributions, accuracy)
    where = f"where the whole model has {100 * accuracy:.1f} %"
    if not isinstance(promised, Tensor) or promised.shape != contributions.shape or not bool(promised.isfinite().all()):
        raise UsageError(
            f"A reward curve must return a tensor with one finite accuracy for each contribution; {where}, it does not."
        )
    order = contributions.argsort(stable=True)
    falls = promised[order].diff() < -1e-9
    rises = contributions[order].diff() > 0
    if bool((falls & rises).any()):
        k = int((falls & rises).nonzero()[0])
        low, high = (float(contributions[order[j]]) for j in (k, k + 1))
        raise UsageError(
            f"The reward curve promises less for a contribution of {high:.3g} than for {low:.3g} {where}: it must not "
            "fall."
        )
    apart = (promised[order].diff().abs() > _ROUNDING) & ~rises
    if bool(apart.any()):
        raise UsageError(
            f"The reward curve promises different accuracies for equal contributions {where}: it must be a function of "
            "what a client brings."
        )
    most = float(promised[order[-1]])
    if abs(most - accuracy) > _ROUNDING:
        raise UsageError(
            f"The reward curve promises {100 * most:.1f} % to the best contributor {where}: the best get the whole "
            "model, so it must promise them that."
        )
    return promised


def outside(
    curve: Curve, contributions: Tensor, accuracy: float, names: Sequence[str], alpha: float = 0.5
) -> list[str]:
    """Say which clients the curve promises more or less than bounded collaborative fairness allows, and why."""
    promised = curve(contributions, accuracy)
    lower, upper = band(contributions, promised, alpha)
    sentences = []
    for name, c, a, top in zip(names, lower.tolist(), promised.tolist(), upper.tolist(), strict=True):
        if a <= c:
            sentences.append(
                f"Client {name} is promised {100 * a:.1f} %, not more than the {100 * c:.1f} % it reaches alone."
            )
        elif a > top + 1e-12:
            sentences.append(
                f"Client {name} is promised {100 * a:.1f} %, above the {100 * top:.1f} % that its contribution bounds."
            )
    return sentences


def known_by(curve: Curve, contributions: Tensor) -> list[float]:
    """Return what a curve promises for some accuracies: numbers by which it is known again."""
    best = float(contributions.max())
    return [round(value, 9) for accuracy in (best, 0.5, 1.0) for value in curve(contributions, accuracy).tolist()]


def inside_while(curve: Curve, contributions: Tensor, names: Sequence[str]) -> str:
    """Say how accurate the whole model may be for all promises to lie within the α-BCF band."""
    best = float(contributions.max().clamp(0, 1))
    accuracies = np.linspace(best, 1, 201)[1:].tolist()
    faults = [outside(curve, contributions, accuracy, names) for accuracy in accuracies]
    first = next((k for k, fault in enumerate(faults) if not fault), None)
    if first is None:
        none = "No accuracy of the whole model keeps everybody inside the α-BCF band."
        return f"{none} {_first_of(faults[0])}" if faults else ""
    last = next((k for k in range(first, len(faults)) if faults[k]), len(faults))  # the first that is outside again
    sentence = (
        f"Everybody is promised more than it reaches alone, and no more than its contribution bounds (α-BCF), "
        f"while the whole model has {100 * accuracies[first]:.0f} to {100 * accuracies[last - 1]:.0f} %."
    )
    if last == len(faults):
        return sentence
    example = len(faults) - 1 if faults[-1] else last
    return f"{sentence} Where it has {100 * accuracies[example]:.0f} %: {_first_of(faults[example])}"


def _first_of(faults: Sequence[str]) -> str:
    """Return the first of some sentences about clients, and how many others there are."""
    others = len(faults) - 1
    return faults[0] if not others else f"{faults[0]} So {'is another one' if others == 1 else f'are {others} others'}."


def half_width(accuracy: Tensor, samples: int) -> Tensor:
    """Return by how much a model's accuracy on new data may differ from that on `samples` samples, 95 times of 100."""
    return _OF_95 * deviation(accuracy, samples)


def deviation(accuracy: Tensor, samples: int) -> Tensor:
    """Return the standard deviation of an accuracy that was found on a number of samples.

    A model that is never wrong on them, or never right, counts as if it had been so once: nothing is known for sure.
    """
    kept = accuracy.double().clamp(1 / samples, 1 - 1 / samples) if samples > 1 else torch.full_like(accuracy, 0.5)
    return (kept * (1 - kept) / samples).sqrt()


def expected_fairness(curve: Curve, contributions: Tensor, accuracy: float, validation: int, test: int) -> float | None:
    """Return the γ to be expected from the noise of finite validation and test sets alone; None where it is undefined.

    A model that is chosen to score a* on n samples truly has a* ± √(a*(1 − a*)/n); its test adds the like. Rewards
    then spread by the curve and by this noise, and only the first part follows contributions. Errors count as
    independent; as all rewards are judged by the same samples they are alike in part, which harms γ less.
    """
    promised = curve(contributions, accuracy).double().clamp(0, 1)
    noise = (promised * (1 - promised)).mean() * (1 / validation + 1 / test)
    spread = promised.var(unbiased=False)
    along = metrics.fairness(contributions, promised)
    return None if along is None else float(along * (spread / (spread + noise)).sqrt())


def expectations(curve: Curve, contributions: Tensor, validation: int, test: int) -> list[str]:
    """Say how closely promises can be kept on new data, and what γ can be expected, before anything is trained.

    Both are for a whole model as good as the best client alone.
    """
    accuracy = float(contributions.max().clamp(0, 1))
    promised = curve(contributions, accuracy)
    widths = 100 * half_width(promised, validation)
    sentences = [
        f"A model chosen on {validation:,} sample{'s'[: validation - 1]} keeps its promise on new data to "
        f"± {float(widths.max()):.1f} points at worst, ± {float(widths.mean()):.1f} on average (95 times of 100), once "
        "the whole model is as good as the best client alone."
    ]
    if below := int((promised < 0).sum()):
        sentences.append(
            f"{below} of {len(promised)} clients are promised less than 0 % while the whole model is no better than "
            "the best client alone: no model keeps that, they get the nearest there is."
        )
    fairness = expected_fairness(curve, contributions, accuracy, validation, test)
    if fairness is not None:
        spread = 100 * float(promised.double().std(unbiased=False))
        sentences.append(
            f"Promises spread by {spread:.1f} points then (standard deviation): a fairness of {fairness:.1f} or more "
            f"can be expected of a round tested on {test:,} samples."
        )
    return sentences


def _share(contributions: Tensor) -> Tensor:
    """Return c / c_max; where no contribution is above zero, every client is the best."""
    most = contributions.max()
    return contributions / most if float(most) > 0 else torch.ones_like(contributions)
