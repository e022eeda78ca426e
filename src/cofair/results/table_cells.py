"""Three ways to read one cell of a table from the history of a run.

The papers choose rounds by their results on the test set and do not say exactly how, so a number means
little without its rule. `best` is closest to what they print. `last` never looks at the test set to choose.
`joint` chooses by the rewards' accuracies on the validation set; their fairness there is taken against the run's
contributions, so that the choice is free of the test set only where these are (contribution.on = "validation", not
the default).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cofair.errors import UsageError, nearest
from cofair.metrics import fairness_by_round, within_alpha_bound

Floats = npt.NDArray[np.float64]

LAST_ROUNDS = 10
JOINT_MARGIN = 0.01  # one point of accuracy


@dataclass(frozen=True)
class Cell:
    """One cell: the metrics under a rule, and the rounds they were read at."""

    rule: str
    fairness: float | None
    max: float
    mean: float
    min: float
    rate: float
    rounds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _History:
    """Every metric at every evaluated round (T,), on the test set; accuracies on validation if there are."""

    rounds: npt.NDArray[np.int64]
    fairness: Floats
    max: Floats
    mean: Floats
    min: Floats
    rate: Floats
    fairness_on_validation: Floats | None
    max_on_validation: Floats | None


def read(
    rule: str,
    rounds: Sequence[int] | npt.NDArray[np.integer],
    contributions: Sequence[float] | Floats,
    accuracies: npt.ArrayLike,
    validation_accuracies: npt.ArrayLike | None = None,
    alpha: float = 0.5,
) -> Cell:
    """Read a cell from accuracies (T, N) of N clients at T evaluated rounds, by one of the rules.

    NaN stands for a client that had not joined yet.
    """
    if rule not in RULES:
        raise UsageError(f"Unknown rule {rule!r} for a table cell: {nearest(rule, RULES)}")
    c, a = np.asarray(contributions, dtype=np.float64), np.asarray(accuracies, dtype=np.float64)
    t = np.asarray(rounds, dtype=np.int64)
    if not t.size:
        raise UsageError("The history is empty: a table cell needs at least one evaluated round.")
    _check("accuracies", a, t, c)
    gamma_v = best_v = None
    if validation_accuracies is not None:
        v = np.asarray(validation_accuracies, dtype=np.float64)
        _check("validation accuracies", v, t, c)
        gamma_v, best_v, *_ = _metrics(c, v, alpha)
    return RULES[rule](_History(t, *_metrics(c, a, alpha), gamma_v, best_v))


def _metrics(c: Floats, a: Floats, alpha: float) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return fairness, maximum, mean, minimum and rate at each round (T,); NaN is a client that had not joined yet."""
    gaps = np.isnan(a)
    if not gaps.any():
        return fairness_by_round(c, a), a.max(1), a.mean(1), a.min(1), within_alpha_bound(c, a, alpha).mean(1)
    nobody = (np.array([np.nan]),) * 5
    rows = [
        nobody if gap.all() else _metrics(c[~gap], row[None, ~gap], alpha) for gap, row in zip(gaps, a, strict=True)
    ]
    fairness, high, mean, low, share = (np.concatenate(part) for part in zip(*rows, strict=True))
    return fairness, high, mean, low, share


def _best(history: _History) -> Cell:
    metrics = (history.fairness, history.max, history.mean, history.min, history.rate)
    at = [_argbest(values) for values in metrics]
    gamma, high, mean, low, share = (float(values[k]) for values, k in zip(metrics, at, strict=True))
    if np.isnan(gamma):
        return Cell("best", None, high, mean, low, share, _rounds(history, at[1:]))
    return Cell("best", gamma, high, mean, low, share, _rounds(history, at))


def _joint(history: _History) -> Cell:
    gamma, best = history.fairness_on_validation, history.max_on_validation
    if gamma is None or best is None:
        raise UsageError(
            "The rule 'joint' chooses its round on the validation set, but this run did not evaluate its "
            "rewards there: set run.joint = true and run it again."
        )
    good = best >= best[_argbest(best)] - JOINT_MARGIN - 1e-9  # 0.71 - 0.70 is a hair above 0.01
    fair = np.where(good, gamma, np.nan)
    # where no round has a defined fairness on validation, the most accurate one is as good a reading as any
    k = _argbest(best if np.isnan(fair).all() else fair)
    return Cell("joint", *_mean_over(history, np.array([k])), _rounds(history, [k]))


def _last(history: _History) -> Cell:
    chosen = np.flatnonzero(history.rounds > history.rounds.max() - LAST_ROUNDS)
    return Cell("last", *_mean_over(history, chosen), _rounds(history, chosen))


RULES: dict[str, Callable[[_History], Cell]] = {"best": _best, "joint": _joint, "last": _last}


def _mean_over(history: _History, chosen: npt.NDArray[np.int64]) -> tuple[float | None, float, float, float, float]:
    """Return the mean of each metric over chosen rounds; undefined fairness is left out of its mean."""
    gamma = history.fairness[chosen]
    gamma = gamma[~np.isnan(gamma)]
    others = (history.max, history.mean, history.min, history.rate)
    high, mean, low, share = (float(values[chosen].mean()) for values in others)
    return float(gamma.mean()) if gamma.size else None, high, mean, low, share


def _argbest(values: Floats) -> int:
    """Return the first place of the largest finite value (0 if there is none)."""
    return int(np.where(np.isfinite(values), values, -np.inf).argmax())


def _rounds(history: _History, chosen: Sequence[int] | npt.NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(sorted({int(history.rounds[k]) for k in chosen}))


def _check(name: str, values: Floats, rounds: npt.NDArray[np.int64], contributions: Floats) -> None:
    if values.shape != (wanted := (rounds.size, contributions.size)):
        raise UsageError(
            f"The history has {name} of shape {values.shape}: with {wanted[0]} evaluated rounds and "
            f"{wanted[1]} clients it must be {wanted}."
        )
