"""The columns of a comparison, said once: name, heading, meaning, digits, and where the value comes from.

Terminal, JSON, CSV, notebook, report, LaTeX and trackers all show this list. A new metric is a function in `metrics.py`
and a column here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from cofair import metrics
from cofair.results.record import Baseline, Record

Floats = npt.NDArray[np.float64]
NEVER = 10**9


@dataclass(frozen=True)
class Column:
    """One column.

    Its value is either measured at every tested round (`by_round`): then a rule chooses among rounds, and seeds have a
    spread. Or it is counted up to a round (`of_record`), and its last value counts. With both, records have it already.
    """

    name: str  # in frames, CSV and JSON
    heading: str  # in a terminal, a notebook, the report
    meaning: str
    digits: int
    factor: float = 1.0  # accuracies are fractions in files, and percent for people
    unit: str = ""
    higher_is_better: bool | None = True  # None: neither is better
    # contributions (N,), accuracies (T, N) and the α of α-BCF give one value per round (T,); NaN where undefined
    by_round: Callable[[Floats, Floats, float], Floats] | None = None
    of_record: Callable[[Record], float | None] | None = None
    may_be_undefined: bool = False  # rounds in which it is do not count
    one_scale: bool = False  # undefined unless contributions are accuracies that clients reach alone
    latex: str | None = None  # heading in a paper's table; None: not there
    tracked: str | None = None  # name in trackers; None: not logged
    term: str | None = None  # explained below the report's table by its meaning
    note: str | None = None  # below a terminal's table
    left_out_at: int = NEVER  # a narrow terminal loses columns and spreads step by step, the least number first
    bare_at: int = NEVER  # from this step on without its spread
    paired: bool = False  # sweeps compare methods by it, seed by seed
    needs: str | None = None  # a field that records have only where this was measured: without it, no such column
    varies: bool = False  # with a spread over seeds, though counted

    @property
    def has_spread(self) -> bool:
        """Say whether seeds have a spread."""
        return self.varies or self.by_round is not None

    def of(self, record: Record) -> bool:
        """Say whether a record has what the column is made of."""
        return self.needs is None or getattr(record, self.needs) is not None

    def text(self, value: float) -> str:
        """Return a value as people read it."""
        return f"{self.factor * value:.{self.digits}f}{self.unit}"

    def spread_text(self, deviation: float) -> str:
        """Return a standard deviation as people read it."""
        return f"{self.factor * deviation:.{self.digits}f}"

    def best(self, values: Sequence[float]) -> set[int]:
        """Return which values look best: what reads the same is equally good, and what is undefined never is."""
        if self.higher_is_better is None:
            return set()
        read = [math.nan if pd.isna(value) else round(self.factor * float(value), self.digits) for value in values]
        known = [value for value in read if not math.isnan(value)]
        top = (max if self.higher_is_better else min)(known, default=math.nan)
        return {k for k, value in enumerate(read) if value == top}


def _downloaded(record: Record) -> float:
    return sum(record.download) / len(record.download)


def _of_held(record: Record, metric: Callable[[Sequence[float], Sequence[float]], float | None]) -> float | None:
    if record.held is None or record.baseline is None:
        return None
    return metric(record.baseline.contributions, record.held)


COLUMNS: tuple[Column, ...] = (
    Column(
        "fairness", "fairness γ", "100 × Pearson correlation of contributions and rewards", 1,
        by_round=lambda c, a, _: metrics.fairness_by_round(c, a), of_record=lambda record: record.fairness,
        may_be_undefined=True, latex=r"$\gamma$", tracked="fairness", term="γ",
        note="γ = 100 × Pearson(contribution, accuracy)", bare_at=70, paired=True,
    ),
    Column(
        "held_fairness", "held γ", "100 × Pearson correlation of contributions and what clients hold in the end", 1,
        of_record=lambda record: _of_held(record, metrics.fairness), tracked="held/fairness", term="held γ",
        note="held: the best a client makes of all it was handed", bare_at=65, needs="held", varies=True, paired=True,
    ),
    Column(
        "held_weakest", "held weakest %", "what the client holds in the end that contributes least", 1, 100,
        higher_is_better=None, of_record=lambda record: _of_held(record, metrics.of_the_weakest),
        tracked="held/weakest", term="held weakest", bare_at=55, needs="held", varies=True,
    ),
    Column(
        "max", "max %", "the best client's reward", 1, 100, by_round=lambda c, a, _: a.max(1),
        latex=r"max [\%]", tracked="accuracy/max", bare_at=60, paired=True,
    ),
    Column(
        "mean", "mean %", "the mean reward", 1, 100, by_round=lambda c, a, _: a.mean(1),
        latex=r"mean [\%]", tracked="accuracy/mean", bare_at=50,
    ),
    Column(
        "min", "min %", "the worst client's reward", 1, 100, by_round=lambda c, a, _: a.min(1),
        latex=r"min [\%]", tracked="accuracy/min", bare_at=50,
    ),
    Column(
        "rate", "rate", "share of clients that got what they are entitled to (α-BCF, α = 0.5)", 2,
        by_round=lambda c, a, alpha: metrics.within_alpha_bound(c, a, alpha).mean(1),
        latex="rate", term="rate", note="rate: share of clients inside α-BCF", bare_at=40,
    ),
    Column(
        "mcg", "MCG %", "mean over clients of what a reward gains over training alone", 1, 100,
        by_round=lambda c, a, _: metrics.mean_collaboration_gain(c, a), may_be_undefined=True, one_scale=True,
        latex=r"MCG [\%]", tracked="gain/mean", term="MCG", note="MCG: mean gain over training alone", left_out_at=10,
    ),
    Column(
        "cgs", "CGS %", "standard deviation over clients of what a reward gains over training alone", 1, 100,
        higher_is_better=False, by_round=lambda c, a, _: metrics.collaboration_gain_spread(c, a),
        may_be_undefined=True, one_scale=True, latex=r"CGS [\%]", tracked="gain/spread", term="CGS",
        note="CGS: its standard deviation over clients", left_out_at=10,
    ),
    Column(
        "download", "download", "share of a whole model that a client receives in a round", 0, 100, " %",
        higher_is_better=False, of_record=_downloaded, tracked="download", term="download", left_out_at=30,
    ),
    Column(
        "seconds", "seconds", "time of all rounds of a run", 1, higher_is_better=False,
        of_record=lambda record: record.seconds, tracked="seconds", left_out_at=20,
    ),
)  # fmt: skip

MEASURED = tuple(column for column in COLUMNS if column.by_round is not None)
COUNTED = tuple(column for column in COLUMNS if column.by_round is None)
COMPARED = tuple(column for column in COLUMNS if column.has_spread)  # over seeds
NAMED: dict[str, Column] = {column.name: column for column in COLUMNS}


def shown(frame: pd.DataFrame, columns: Sequence[Column] = COLUMNS) -> list[Column]:
    """Return the columns of a frame that a table for people has: one that cannot be defined here only takes room."""
    there = [column for column in columns if column.name in frame]
    return [column for column in there if not (column.one_scale and frame[column.name].isna().all())]


def by_round(baseline: Baseline, accuracies: Floats, alpha: float = 0.5) -> dict[str, Floats]:
    """Return every measured column at each round (T,) of accuracies (T, N); NaN is a client that had not joined yet."""
    c, gaps = np.asarray(baseline.contributions, dtype=np.float64), np.isnan(accuracies)
    if not gaps.any():
        return {column.name: _values(column, c, accuracies, alpha, baseline.are_accuracies) for column in MEASURED}
    nobody = {column.name: np.array([np.nan]) for column in MEASURED}
    rows = [
        nobody if gap.all() else by_round(Baseline(tuple(c[~gap]), baseline.are_accuracies), row[None, ~gap], alpha)
        for gap, row in zip(gaps, accuracies, strict=True)
    ]
    return {column.name: np.concatenate([row[column.name] for row in rows]) for column in MEASURED}


def _values(column: Column, c: Floats, a: Floats, alpha: float, are_accuracies: bool) -> Floats:
    assert column.by_round is not None
    return np.full(len(a), np.nan) if column.one_scale and not are_accuracies else column.by_round(c, a, alpha)


def tracked(record: Record) -> dict[str, float]:
    """Return what trackers log of a round; what is undefined is left out."""
    accuracies = np.array([record.accuracies], dtype=np.float64)
    baseline = record.baseline or Baseline((math.nan,) * accuracies.shape[1], are_accuracies=False)
    measured, found = by_round(baseline, accuracies), dict[str, float]()
    for column in COLUMNS:
        if column.tracked is not None:
            value = column.of_record(record) if column.of_record is not None else float(measured[column.name][0])
            if value is not None and not math.isnan(value):
                found[column.tracked] = value
    return found


def over_seeds(column: Column, values: Sequence[Any]) -> dict[str, float | None]:
    """Return a column over seeds: its mean, and its sample standard deviation where it is measured."""
    defined = [float(value) for value in values if not pd.isna(value)]
    found: dict[str, float | None] = {column.name: float(np.mean(defined)) if defined else None}
    if column.has_spread:
        found[f"{column.name}_std"] = float(np.std(defined, ddof=1)) if len(defined) > 1 else None
    return found


def cell_text(
    row: Mapping[str, Any], column: Column, *, spread: bool = True, interval: bool = False, undefined: str = "undefined"
) -> str:
    """Return a value of a row with its spread: ± over seeds, or for one seed the interval over clients, if wanted."""
    value, deviation = row[column.name], row.get(f"{column.name}_std")
    if pd.isna(value):
        return undefined
    text = column.text(value)
    if spread and deviation is not None and not pd.isna(deviation):
        return f"{text} ± {column.spread_text(deviation)}"
    low, high = row.get(f"{column.name}_low"), row.get(f"{column.name}_high")
    if spread and interval and low is not None and high is not None and not pd.isna(low):
        return f"{text} [{low:.0f}, {high:.0f}]"
    return text
