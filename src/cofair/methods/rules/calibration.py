"""Which submodel meets a promise: nested prefixes of an order of neurons, found by halving the gaps between known ones.

Accuracy need not rise with every neuron, so a promise can lie between several pairs of neighbours: the nearest pair is
halved first, then the others, until a submodel fits as well as the samples can show or one pair could have been
halved down to a pack.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cofair.methods.rules.promises import Curve, band
from cofair.scoring.nested import prefix_masks
from cofair.scoring.scorer import Scorer

_COARSE = 16  # submodels that are scored first, at most
_LOOKS = 4  # at submodels between those, where there are few
_WELL = 0.25  # of the noise of an accuracy: a miss so small adds nothing to it


@dataclass(frozen=True)
class Calibration:
    """Masks (N, K) of the submodels chosen, the accuracies promised (N,) and those validated (N,)."""

    masks: Tensor
    promised: Tensor
    validated: Tensor


def calibrate(
    scorer: Scorer, base: Tensor, order: Tensor, contributions: Tensor, curve: Curve, pack: int,
    checked_by: Scorer | None = None, inside: bool = False,
) -> Calibration:  # fmt: skip
    """Find for each client the prefix of an order (K,) whose accuracy is closest to its promise.

    The best contributor gets everything. With `inside`, a client promised an accuracy inside the α-BCF band gets
    the closest one there, if any was found: where accuracy jumps, the promise is missed on the harmless side. Validated
    accuracies come from the samples that chose, or from those of `checked_by`; the promise rests on both.
    """
    K = len(order)
    step = pack
    while _COARSE * step < K:
        step *= 2
    accuracy = _scored(scorer, base, order, {*range(step, K, step), K})
    whole = accuracy[K]
    if checked_by is not None:
        ours, others = len(scorer.samples), len(checked_by.samples)
        whole = (ours * whole + others * _scored(checked_by, base, order, {K})[K]) / (ours + others)
    promised = curve(contributions, whole)
    below = contributions < contributions.max()
    owed = set(promised[below].tolist())
    for _ in range(max(_LOOKS, (step // pack).bit_length() - 1)):  # one pair can be halved so often, others are luck
        owed = {a for a in owed if _misses(accuracy, a) > _WELL * _noise(a, len(scorer.samples))}
        wanted = {size for a in owed if (size := _between(accuracy, a, pack)) is not None}
        if not wanted:
            break
        accuracy |= _scored(scorer, base, order, wanted)
    lower, upper = band(contributions, promised)
    rows = zip(promised.tolist(), below.tolist(), lower.tolist(), upper.tolist(), strict=True)
    counts = [
        _closest(accuracy, a, (low, high) if inside and low < a <= high else None) if less else K
        for a, less, low, high in rows
    ]
    if checked_by is not None:
        accuracy = _scored(checked_by, base, order, set(counts))
    validated = torch.tensor([accuracy[count] for count in counts], dtype=torch.float64).to(promised)
    return Calibration(prefix_masks(order, torch.tensor(counts)), promised, validated)


def _scored(scorer: Scorer, base: Tensor, order: Tensor, sizes: set[int]) -> dict[int, float]:
    """Return the accuracies of prefixes."""
    asked = sorted(sizes)
    scores = scorer.prefixes(base, order, torch.tensor(asked))
    return dict(zip(asked, scores.metric.double().tolist(), strict=True))


def _misses(accuracy: dict[int, float], owed: float) -> float:
    """Return how far from a promise its best fit is."""
    return abs(accuracy[_closest(accuracy, owed)] - owed)


def _noise(accuracy: float, samples: int) -> float:
    """Return the standard deviation of an accuracy on a number of samples."""
    return math.sqrt(max(accuracy * (1 - accuracy), 0) / samples)


def _between(accuracy: dict[int, float], owed: float, pack: int) -> int | None:
    """Return the size halfway between two neighbours around a promise, the nearest ones; None where none are left."""
    nothing = min(owed, *accuracy.values()) - 1  # no neuron at all is taken to be worse than anything, in any metric
    known = sorted({0: nothing, **accuracy}.items())
    around = [
        (min(abs(low - owed), abs(high - owed)), a, b)
        for (a, low), (b, high) in pairwise(known)
        if b - a > pack and (low - owed) * (high - owed) <= 0
    ]
    if not around:
        return None
    _, a, b = min(around)
    return max(a + pack, (a + b) // (2 * pack) * pack)


def _closest(accuracy: dict[int, float], owed: float, within: tuple[float, float] | None = None) -> int:
    """Return the size whose accuracy is closest to what is owed, if possible within bounds, the larger of equals."""
    low, high = within or (-math.inf, math.inf)
    return min(accuracy, key=lambda size: (not low < accuracy[size] <= high, abs(accuracy[size] - owed), -size))
