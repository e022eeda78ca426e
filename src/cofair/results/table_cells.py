"""Four ways to read one cell of a table from the history of a run.

`delivered` is of the models that clients are delivered after the last round: what they have in the end. The papers
choose rounds by their results on the test set and do not say exactly how, so a number means little without its rule.
`best` is closest to what they print. `last`, the mean over the final ten rounds, never looks at the test set to choose.
`joint` chooses by the rewards' accuracies on the validation set; their fairness there is taken against the run's
contributions, so that the choice is free of the test set only where these are (contribution.on = "validation", not
the default).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cofair.errors import UsageError, nearest
from cofair.results import columns
from cofair.results.columns import MEASURED, Column
from cofair.results.record import Baseline

Floats = npt.NDArray[np.float64]

DELIVERED = "delivered"  # what is meant where no rule is named
LAST_ROUNDS = 10
JOINT_MARGIN = 0.01  # one point of accuracy


@dataclass(frozen=True)
class Cell:
    """One cell: every measured column under a rule (None where it is undefined), and the rounds it was read at."""

    rule: str
    values: Mapping[str, float | None]
    rounds: tuple[int, ...]

    def __getitem__(self, name: str) -> float | None:
        """Return a column by its name."""
        return self.values[name]

    @property
    def fairness(self) -> float | None:
        """Return γ, or None where it is undefined."""
        return self.values["fairness"]

    @property
    def max(self) -> float:
        """Return the best client's accuracy."""
        return self._defined("max")

    @property
    def mean(self) -> float:
        """Return the mean accuracy over clients."""
        return self._defined("mean")

    @property
    def min(self) -> float:
        """Return the worst client's accuracy."""
        return self._defined("min")

    @property
    def rate(self) -> float:
        """Return the share of clients inside α-BCF."""
        return self._defined("rate")

    def _defined(self, name: str) -> float:
        value = self.values[name]
        assert value is not None  # its column cannot be undefined
        return value

    def to_dict(self) -> dict[str, Any]:
        """Return the cell in plain values, as `summary.json` holds it."""
        return {"rule": self.rule, **self.values, "rounds": self.rounds}


@dataclass(frozen=True, eq=False)
class _History:
    """Every measured column at every tested round (T,), on the test set and, if there is one, on the validation set."""

    rounds: npt.NDArray[np.int64]
    tested: Mapping[str, Floats]
    validated: Mapping[str, Floats] | None


def read(
    rule: str,
    rounds: Sequence[int] | npt.NDArray[np.integer],
    contributions: Sequence[float] | Floats,
    accuracies: npt.ArrayLike,
    validation_accuracies: npt.ArrayLike | None = None,
    alpha: float = 0.5,
    *,
    contributions_are_accuracies: bool = False,
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
    baseline, validated = Baseline(tuple(c.tolist()), contributions_are_accuracies), None
    if validation_accuracies is not None:
        v = np.asarray(validation_accuracies, dtype=np.float64)
        _check("validation accuracies", v, t, c)
        validated = columns.by_round(baseline, v, alpha)
    return RULES[rule](_History(t, columns.by_round(baseline, a, alpha), validated))


def _best(history: _History) -> Cell:
    values: dict[str, float | None] = {}
    read_at = []
    for column in MEASURED:
        own = history.tested[column.name]
        k = _argbest(own, column)
        undefined = column.may_be_undefined and np.isnan(own[k])
        values[column.name] = None if undefined else float(own[k])
        read_at += [] if undefined else [k]
    return Cell("best", values, _rounds(history, read_at))


def _joint(history: _History) -> Cell:
    if history.validated is None:
        raise UsageError(
            "The rule 'joint' chooses its round on the validation set, but this run did not evaluate its "
            "rewards there: set run.joint = true and run it again."
        )
    gamma, best = history.validated["fairness"], history.validated["max"]
    good = best >= best[_argbest(best)] - JOINT_MARGIN - 1e-9  # 0.71 - 0.70 is a hair above 0.01
    fair = np.where(good, gamma, np.nan)
    # where no round has a defined fairness on validation, the most accurate one is as good a reading as any
    k = _argbest(best if np.isnan(fair).all() else fair)
    return Cell("joint", _mean_over(history, np.array([k])), _rounds(history, [k]))


def _delivered(history: _History) -> Cell:
    chosen = np.array([history.rounds.argmax()])
    return Cell(DELIVERED, _mean_over(history, chosen), _rounds(history, chosen))


def _last(history: _History) -> Cell:
    chosen = np.flatnonzero(history.rounds > history.rounds.max() - LAST_ROUNDS)
    return Cell("last", _mean_over(history, chosen), _rounds(history, chosen))


RULES: dict[str, Callable[[_History], Cell]] = {DELIVERED: _delivered, "best": _best, "joint": _joint, "last": _last}


def _mean_over(history: _History, chosen: npt.NDArray[np.int64]) -> dict[str, float | None]:
    """Return the mean of each column over chosen rounds; rounds in which one is undefined are left out of its mean."""
    found: dict[str, float | None] = {}
    for column in MEASURED:
        values = history.tested[column.name][chosen]
        if column.may_be_undefined:
            values = values[~np.isnan(values)]
        found[column.name] = float(values.mean()) if values.size else None
    return found


def _argbest(values: Floats, column: Column | None = None) -> int:
    """Return the first place of the best finite value (0 if there is none)."""
    if column is not None and not column.higher_is_better:
        values = -values
    return int(np.where(np.isfinite(values), values, -np.inf).argmax())


def _rounds(history: _History, chosen: Sequence[int] | npt.NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(sorted({int(history.rounds[k]) for k in chosen}))


def _check(name: str, values: Floats, rounds: npt.NDArray[np.int64], contributions: Floats) -> None:
    if values.shape != (wanted := (rounds.size, contributions.size)):
        raise UsageError(
            f"The history has {name} of shape {values.shape}: with {wanted[0]} evaluated rounds and "
            f"{wanted[1]} clients it must be {wanted}."
        )
