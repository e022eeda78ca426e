"""What was measured for a cell, from the finished runs of its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cofair.config.job import Job
from cofair.report.reported_runs import read_run
from cofair.reproduce.paper_numbers import Number
from cofair.reproduce.paper_tables import PublishedTable, behind, experiment
from cofair.results.columns import NAMED
from cofair.results.result import Outcome
from cofair.runs.jobs import unfinished

_COLUMNS = {  # of a comparison, by what the files of published numbers call them
    "fairness_pearson_x100": NAMED["fairness"],
    "max_test_accuracy_pct": NAMED["max"],
    "mean_test_accuracy_pct": NAMED["mean"],
    "rate_alphaBCF": NAMED["rate"],
}
_ROUNDING = 1e-9  # of means over seeds


@dataclass(frozen=True)
class Value:
    """Mean and sample standard deviation over seeds."""

    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True)
class Line:
    """A cell: what was published, and what we measured by each rule (None where nothing is finished)."""

    published: Number
    measured: dict[str, Value | None]

    def difference(self, rule: str) -> float | None:
        """Return measured less published."""
        value = self.measured[rule]
        return None if value is None else value.mean - self.published.mean


def reached(lines: Sequence[Line], rule: str) -> dict[str, tuple[int, int]]:
    """Return by method in how many cells the measured mean is at least the published one less its standard deviation.

    Beside it stands of how many: cells with a published standard deviation and a finished run. Errors are not counted.
    """
    found: dict[str, tuple[int, int]] = {}
    for line in lines:
        own, value = line.published, line.measured[rule]
        if value is not None and own.std is not None and own.metric in _COLUMNS:
            good, count = found.get(own.method, (0, 0))
            found[own.method] = good + (value.mean >= own.mean - own.std - _ROUNDING), count + 1
    return found


def job(paper: str, cell: Number, seed: int, out: Path, changes: Sequence[str]) -> Job:
    """Return the run behind a cell and a seed; tables of one paper share their runs' folders."""
    own = behind(paper, cell)
    parts = [own.data, str(own.clients), own.scene, own.method, f"seed{seed}"]
    name = "-".join("".join(c if c.isalnum() or c in "." else "_" for c in part).strip("_") for part in parts)
    return Job(experiment(paper, cell, seed, changes), out / paper / name)


def jobs(table: PublishedTable, seeds: Sequence[int], out: Path, changes: Sequence[str]) -> list[Job]:
    """Return every run behind a table, once each."""
    found = {
        own.path: own for cell in table.cells for seed in seeds for own in [job(table.paper, cell, seed, out, changes)]
    }
    return list(found.values())


def lines(
    table: PublishedTable, seeds: Sequence[int], out: Path, changes: Sequence[str], rules: Sequence[str]
) -> list[Line]:
    """Return the table as far as it is finished."""
    done: dict[Path, Outcome | None] = {}
    for own in jobs(table, seeds, out, changes):
        done[own.path] = None if unfinished([own]) else read_run(own.path).outcome
    found = []
    for cell in table.cells:
        outcomes = [done[job(table.paper, cell, seed, out, changes).path] for seed in seeds]
        finished = [outcome for outcome in outcomes if outcome is not None]
        found.append(Line(cell, {rule: _value(cell, finished, rule) for rule in rules}))
    return found


def _value(cell: Number, outcomes: Sequence[Outcome], rule: str) -> Value | None:
    read = [_read(cell, outcome, rule) for outcome in outcomes]
    values = [value for value in read if value is not None]
    if not values:
        return None
    return Value(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None, len(values))


def _read(cell: Number, outcome: Outcome, rule: str) -> float | None:
    """Return one run's value by a rule."""
    if cell.metric in _COLUMNS:
        column = _COLUMNS[cell.metric]
        value = outcome.cell(rule)[column.name]
        return None if value is None else column.factor * value
    if cell.metric in ("mean_psi", "mean_reward_sparsity_pct"):
        return _of_agent(cell, outcome)
    # Table 7 of FedSAC: accuracies where fairness is above 95
    fair = [record for record in outcome.history if record.fairness is not None and record.fairness > 95]
    if not fair:
        return None
    best = max(fair, key=lambda record: max(record.accuracies))
    return 100 * (max(best.accuracies) if cell.metric.startswith("max") else min(best.accuracies))


def _of_agent(cell: Number, outcome: Outcome) -> float | None:
    """Return what Figure 2 of CGSV says of one agent: its mean reputation, or what was left out of its rewards.

    Nothing travels before the first reward is made, so that a run of one round has left out nothing and everything.
    """
    i = int(cell.method.split()[1]) - 1
    if cell.metric == "mean_psi":
        return float(np.mean([record.reputation[i] for record in outcome.history if record.reputation is not None]))
    last = outcome.history[-1]
    return None if last.round == 1 else 100 * (1 - last.download[i] * last.round / (last.round - 1))
