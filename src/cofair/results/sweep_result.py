"""What a sweep measured: one row per run, one per combination over its seeds, and methods compared seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
from scipy import stats

from cofair.config.grid import Point
from cofair.config.job import Job
from cofair.results.columns import COMPARED, over_seeds
from cofair.results.result import Outcome

RULES = ("last", "best")


@dataclass(frozen=True)
class SweepResult:
    """The outcomes of a grid of experiments, None for runs that did not finish; `failures` says why."""

    points: tuple[Point, ...]
    jobs: tuple[Job, ...]
    outcomes: tuple[Outcome | None, ...]
    failures: dict[str, str] = field(default_factory=dict)

    @cached_property
    def varied(self) -> list[str]:
        """Return every setting that the grid varies, including those that only some of its experiments have."""
        return _varied_keys(self.points)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Return one row per finished run and rule: what was varied, and what was measured.

        A setting that only failed runs vary has a column too, so that the others can be grouped by it.
        """
        rows = []
        for point, job, outcome in zip(self.points, self.jobs, self.outcomes, strict=True):
            if outcome is not None:
                own = {key: _cell(point.varied.get(key)) for key in self.varied}
                rows += [{**own, "rule": rule, **outcome.row(rule), "folder": job.name} for rule in RULES]
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per combination of settings and rule: mean and sample standard deviation over seeds."""
        return grouped(self.frame, self.varied)

    def paired(self, rule: str = "last") -> pd.DataFrame:
        """Return the methods compared with the first one, seed by seed."""
        return paired(self.frame, self.varied, rule)

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, na_rep="–"))

    @property
    def missing(self) -> list[Job]:
        """Return the runs that did not finish."""
        return [job for job, outcome in zip(self.jobs, self.outcomes, strict=True) if outcome is None]


def _varied_keys(points: Sequence[Point]) -> list[str]:
    """Return every setting that the grid varies, including those that only some of its experiments have."""
    return list(dict.fromkeys(key for point in points for key in point.varied))


def grouped(frame: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """Return one row per combination without the seed: mean and sample standard deviation over seeds."""
    keys = [key for key in (*varied, "rule") if key != "run.seed"]
    rows = []
    if frame.empty:  # every run failed
        return pd.DataFrame()
    for values, own in frame.groupby(keys, sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(keys, values if isinstance(values, tuple) else (values,), strict=True))
        row["seeds"] = len(own)
        for column in COMPARED:
            if column.name in own:
                row |= over_seeds(column, list(own[column.name]))
        rows.append(row)
    return pd.DataFrame(rows)


def paired(frame: pd.DataFrame, varied: Sequence[str], rule: str) -> pd.DataFrame:
    """Compare the methods' fairness and best accuracy with the first one's, seed by seed.

    Differences are taken between runs that differ in their method alone, and summed up over seeds only; p is that of a
    paired t-test, for 3 pairs or more.
    """
    if "method.name" not in varied or frame.empty:
        return pd.DataFrame()
    own = frame[frame["rule"] == rule].copy()
    own["label"] = own.apply(lambda row: _label(row, varied), axis=1)
    first = own["label"].iloc[0]
    scene = [key for key in varied if not key.startswith("method.") and key != "run.seed"]
    rows = []
    for values, group in own.groupby(scene, sort=False, dropna=False) if scene else [((), own)]:
        where = dict(zip(scene, values if isinstance(values, tuple) else (values,), strict=True))
        seeds = "run.seed" if "run.seed" in varied else "rule"
        against = group[group["label"] == first].set_index(seeds)
        for label in dict.fromkeys(group["label"]):
            if label != first:
                runs = group[group["label"] == label].set_index(seeds)
                for column in (column for column in COMPARED if column.paired and column.name in own):
                    names = {"method": label, "against": first, "quantity": column.name}
                    rows.append({**where, **names, **_difference(runs, against, column.name)})
    return pd.DataFrame(rows)


def _difference(runs: pd.DataFrame, against: pd.DataFrame, name: str) -> dict[str, Any]:
    pairs = (runs[name].astype(float) - against[name].astype(float)).dropna()
    spread = float(pairs.std(ddof=1)) if len(pairs) > 1 else None
    p = float(stats.ttest_1samp(pairs, 0).pvalue) if len(pairs) > 2 and spread else None
    mean = float(pairs.mean()) if len(pairs) else None
    return {"pairs": len(pairs), "difference": mean, "std": spread, "p": p}


def _label(row: "pd.Series[Any]", varied: Sequence[str]) -> str:
    settings = [
        f"{key.partition('.')[2]} {short_setting(row[key])}"
        for key in varied
        if key.startswith("method.") and key != "method.name" and not pd.isna(row.get(key))
    ]
    return " ".join([str(row["method.name"]), *settings])


def _cell(value: object) -> object:
    """Return a setting that rows can be grouped by: a list as its text."""
    return str(list(value)) if isinstance(value, list | tuple) else value


def short_setting(value: object) -> str:
    """Write a setting; pandas turns whole numbers into 32.0 where a column has gaps."""
    return f"{value:g}" if isinstance(value, float) else str(value)
