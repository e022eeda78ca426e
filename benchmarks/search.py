"""Settings that a paper does not print, searched on the validation set: no test sample is looked at.

    python -m benchmarks.search fedsac-table1 --cells "cifar10/dir(1.0)" --methods FedSAC \
        --vary method.beta=2,5,10 --vary training.clip=none,1 --out results/search

Every cell is trained with every combination, on a seed that no table uses (100), with contributions measured on the
validation set. Printed, best first for each cell: the best γ of a round, γ and the best client's accuracy over the last
ten, and the best accuracy of any round. All are of rewards on the validation set. A star marks the choice: the fairest
by its best round among those whose best accuracy is within a point of the highest.
"""

import argparse
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cofair import metrics
from cofair.config.job import Job
from cofair.report.reported_runs import read_run
from cofair.reproduce.paper_numbers import Number
from cofair.reproduce.paper_tables import chosen, experiment, table
from cofair.results.listener import Listener
from cofair.runs.jobs import run_jobs, unfinished

SEED = 100  # of no table
LAST = 10
WITHIN = 1.0  # points of accuracy


class Row(NamedTuple):
    """What a combination of settings gives, on the validation set."""

    best: float  # γ of a round
    last: float  # γ over the last rounds
    top_last: float  # accuracy of the best client over the last rounds
    top: float  # the best accuracy of a client in any round
    settings: str


def main() -> None:
    given = arguments()
    whole = table(given.table)
    part = chosen(whole, given.cells, given.methods)
    fixed = [f"run.device={given.device}", f"run.precision={given.precision}", *given.set]
    fixed += ["run.joint=true", "contribution.on=validation"]
    names = [text.partition("=")[0] for text in given.vary]
    values = [text.partition("=")[2].split(",") for text in given.vary]
    found: dict[Number, list[tuple[str, Job]]] = {}
    for cell in part.cells:
        for combination in itertools.product(*values):
            changes = [f"{name}={value}" for name, value in zip(names, combination, strict=True)]
            own = experiment(part.paper, cell, SEED, [*fixed, *changes])
            name = hashlib.sha256(own.to_toml().encode()).hexdigest()[:16]
            found.setdefault(cell, []).append((" ".join(changes), Job(own, given.out / name)))
    jobs = {job.path: job for pairs in found.values() for _, job in pairs}
    run_jobs(unfinished(list(jobs.values())), Failures(), lockstep=True, workers=given.workers)
    for cell, pairs in found.items():
        print(f"\n{cell.data} {cell.scene} {cell.method}: {cell.metric} {cell.mean:g} published")
        print(f"{'best γ':>7} {'γ last':>7} {'max last':>8} {'max best':>8}  settings")
        rows = sorted((Row(*read(job), text) for text, job in pairs if not unfinished([job])), reverse=True)
        star = choice(rows)
        for row in rows:
            numbers = f"{row.best:7.1f} {row.last:7.1f} {row.top_last:8.1f} {row.top:8.1f}"
            print(f"{numbers}  {row.settings}{' *' if row is star else ''}")


def choice(rows: Sequence[Row]) -> Row | None:
    """Return the fairest by its best round, of those whose best accuracy is within a point of the highest."""
    highest = max((row.top for row in rows), default=0.0)
    accurate = [row for row in rows if row.top >= highest - WITHIN and not np.isnan(row.best)]
    return max(accurate, key=lambda row: row.best, default=None)


def read(job: Job) -> tuple[float, float, float, float]:
    """Return a run's best γ, γ and best accuracy over the last rounds, and best accuracy, on the validation set."""
    outcome = read_run(job.path).outcome
    rewards = np.array([record.validation for record in outcome.history if record.validation is not None])
    fairness = metrics.fairness_by_round(outcome.contributions, rewards)
    top = 100 * rewards.max(1)
    known = ~np.isnan(fairness)
    best = float(fairness[known].max()) if known.any() else float("nan")
    late = fairness[-LAST:][known[-LAST:]]
    return best, float(late.mean()) if len(late) else float("nan"), float(top[-LAST:].mean()), float(top.max())


class Failures(Listener):
    """Prints why runs fail."""

    def failed(self, job: Job, reason: str) -> None:  # noqa: D102
        print(job.name, reason, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--cells", nargs="*", default=[])
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--vary", action="append", default=[], metavar="TABLE.KEY=A,B,C")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/search"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
