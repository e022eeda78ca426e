"""How fair rewards are, and how good models are.

Fairness compares contributions c (what each client brings) with accuracies a (what its reward is worth). What judges
models by their outputs stands in `quality` and is found here as well.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from cofair.errors import UsageError
from cofair.quality import (
    METRICS,
    Metric,
    accuracy,
    auroc,
    balanced_accuracy,
    c_index,
    f1,
    log_loss,
    mae,
    metric,
    r2,
    title,
)

__all__ = [
    "METRICS", "Metric", "accuracy", "alpha_bounds", "auroc", "balanced_accuracy", "bootstrap_interval", "bounded",
    "bounds", "c_index", "collaboration_gain_spread", "f1", "fairness", "fairness_by_round", "log_loss", "mae",
    "mean_collaboration_gain", "metric", "of_the_weakest", "r2", "rate", "title", "within_alpha_bound",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Numbers = Sequence[float] | npt.NDArray[np.floating] | Tensor

_EQUAL = 1e-6  # relative spread below which values count as equal: several roundings of float32
_FEWEST_CLIENTS = 8  # a bootstrap over fewer clients says nothing
_DEFINED = 0.9  # share of resamples that must have a defined fairness


def fairness(contributions: Numbers, accuracies: Numbers) -> float | None:
    """Return γ = 100 × Pearson(c, a), or None if it is undefined.

    It is undefined for fewer than two clients, for equal contributions, for equal rewards (as in a first
    round that gives everyone the same model), and if a value is not finite.
    """
    if (shape := _array(accuracies).shape) != _array(contributions).shape:
        raise UsageError(f"Fairness needs one accuracy for each contribution, not accuracies of shape {shape}.")
    gamma = float(fairness_by_round(contributions, accuracies))
    return None if np.isnan(gamma) else gamma


def of_the_weakest(contributions: Numbers, accuracies: Numbers) -> float:
    """Return the accuracy of the client that contributes least, the mean over several that do."""
    c, a = _paired(contributions, accuracies, at_least=1)
    return float(a[c == c.min()].mean())


def fairness_by_round(contributions: Numbers, accuracies: Numbers) -> Floats:
    """Return γ for each row of accuracies (..., N); NaN where it is undefined."""
    c, a = _paired(contributions, accuracies)
    return 100 * _pearson(np.broadcast_to(c, a.shape), a)


def bounds(contributions: Numbers, accuracies: Numbers) -> tuple[Floats, Floats]:
    """Return the open bounds of FedSAC's bounded collaborative fairness: c and (c + max a) / 2.

    As published, the upper bound cannot hold for the best client, so that client has none. The best client is
    the one with the largest accuracy and, among equals, the largest contribution.
    """
    c, a = _paired(contributions, accuracies, at_least=1)
    top = _highest(a)[..., None]
    most = np.where(a == top, c, -np.inf)
    upper = np.where(most == _highest(most)[..., None], np.inf, (c + top) / 2)
    return np.broadcast_to(c, a.shape), upper


def bounded(contributions: Numbers, accuracies: Numbers) -> Bools:
    """Return which clients satisfy FedSAC's bounded collaborative fairness; the best one has no upper bound."""
    lower, upper = bounds(contributions, accuracies)
    a = _array(accuracies)
    return (lower < a) & (a < upper)


def alpha_bounds(contributions: Numbers, accuracies: Numbers, alpha: float = 0.5) -> tuple[Floats, Floats]:
    """Return FedRAC's α-BCF bounds: c (open) and ((1 - α) c / max c + α) max a (closed).

    If nobody brings anything (max c is not positive), all clients count as equal to the best.
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha is {alpha}: the α of the α-bound must be between 0 and 1.")
    c, a = _paired(contributions, accuracies, at_least=1)
    c = np.where(np.isfinite(c), c, np.nan)
    most = _highest(c)
    ratio = c / most if most > 0 else np.where(np.isnan(c), np.nan, 1.0)
    # 1 - (1 - α)(1 - ratio) is exactly 1 for the best contributor, so that rounding never puts it outside
    upper = (1 - (1 - alpha) * (1 - ratio)) * _highest(a)[..., None]
    return np.broadcast_to(c, a.shape), upper


def within_alpha_bound(contributions: Numbers, accuracies: Numbers, alpha: float = 0.5) -> Bools:
    """Return which clients are within the α-bound: better than alone, not better than they deserve."""
    lower, upper = alpha_bounds(contributions, accuracies, alpha)
    a = _array(accuracies)
    return (lower < a) & (a <= upper)


def rate(contributions: Numbers, accuracies: Numbers, alpha: float = 0.5) -> float:
    """Return the fraction of clients within the α-bound.

    FedRAC's released code sets its running counter to -10 at every client with a ≤ c, so the rates it prints
    can be negative and depend on the order of clients; the published rates are plain fractions, as here.
    """
    return float(within_alpha_bound(contributions, accuracies, alpha).mean())


def mean_collaboration_gain(contributions: Numbers, accuracies: Numbers) -> Floats:
    """Return MCG of CYCle (Tastan et al. 2025) for each row of accuracies (..., N): the mean gain over training alone.

    Contributions must be the accuracies that clients reach alone.
    """
    c, a = _paired(contributions, accuracies, at_least=1)
    return np.asarray((a - c).mean(-1))


def collaboration_gain_spread(contributions: Numbers, accuracies: Numbers) -> Floats:
    """Return CGS of CYCle for each row of accuracies (..., N): the standard deviation of gains over clients.

    It is that of the population, divided by N: the clients are all there are. The smaller, the more evenly gains are
    spread, whoever brought how much: where everybody gains the same it is 0.
    """
    c, a = _paired(contributions, accuracies, at_least=1)
    return np.asarray((a - c).std(-1))


def bootstrap_interval(
    contributions: Numbers, accuracies: Numbers, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Return a percentile interval of γ over resampled clients, or None if it would mean nothing.

    Accuracies (T, N) of several rounds give an interval of the mean of their γ, as the rule `last` computes it: rounds
    whose γ is undefined are left out of the mean. It means nothing for fewer than 8 clients, or if more than a tenth of
    the resamples have no round with a defined γ.
    """
    if not 0 < level < 1 or draws < 1:
        raise UsageError(f"A bootstrap needs 0 < level < 1 and draws >= 1, not level {level} and {draws} draws.")
    c, a = _array(contributions), np.atleast_2d(_array(accuracies))
    for row in a:
        _paired(c, row)
    if len(c) < _FEWEST_CLIENTS:
        return None
    chosen = np.random.default_rng(seed).integers(0, len(c), (draws, len(c)))
    gammas = np.stack([_pearson(c[chosen], row[chosen]) for row in a])
    known = ~np.isnan(gammas)
    counts = known.sum(0)
    defined = 100 * np.where(known, gammas, 0).sum(0)[counts > 0] / counts[counts > 0]
    if len(defined) < _DEFINED * draws:
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _array(values: Numbers) -> Floats:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _paired(contributions: Numbers, accuracies: Numbers, at_least: int = 0) -> tuple[Floats, Floats]:
    c, a = _array(contributions), _array(accuracies)
    if c.ndim != 1 or a.ndim < 1 or a.shape[-1] != len(c):
        raise UsageError(
            f"Contributions have shape {c.shape} and accuracies have shape {a.shape}: give one of each for every "
            "client."
        )
    if len(c) < at_least:
        raise UsageError("There are no clients to judge: give at least one contribution and one accuracy.")
    return c, a


def _highest(values: Floats) -> Floats:
    """Return the largest finite value along the last axis: a client without a value does not affect the others."""
    return np.asarray(np.max(values, axis=-1, where=np.isfinite(values), initial=np.finfo(np.float64).min))


def _pearson(x: Floats, y: Floats) -> Floats:
    """Return the correlation along the last axis; NaN where it is undefined."""
    if x.shape[-1] < 2:
        return np.full(x.shape[:-1], np.nan)
    x, y = _unit(x), _unit(y)
    return np.asarray(np.clip((x * y).sum(-1), -1, 1))


def _unit(x: Floats) -> Floats:
    """Centre and scale to length 1 along the last axis; NaN where values are all equal or not finite."""
    finite = np.isfinite(x).all(-1, keepdims=True)
    x = np.where(finite, x, 0)
    largest = np.abs(x).max(-1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1)  # first to the range -1 to 1, so that nothing overflows
    varied = finite & (np.ptp(x, axis=-1, keepdims=True) > _EQUAL)
    x = x - x.mean(-1, keepdims=True)
    length = np.sqrt((x**2).sum(-1, keepdims=True))
    return np.where(varied, x / np.where(varied, length, 1), np.nan)
