"""What the choice of a round does to a table: the best of all tested rounds, of fewer of them, or of an earlier end.

    python -m benchmarks.tested_rounds reproduced/shift/fedsac --every 5 --cycle 10 --only DIR
    python -m benchmarks.tested_rounds reproduced/long/fedrac --until 1000 2000 5000 10000

Means over seeds, for runs that lie in one folder: γ by the best tested round, by the best of every n-th and of the last
ten, and over the last ten; the accuracy of the best client in its best round, until some rounds. With `--cycle`, over
all runs: mean γ by where a round stands in a cycle (after two of them), where best rounds stand, how many of them are
in the first two cycles, and in how many the best client is more than 5 points below its best.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cofair.report.reported_runs import ReportedRun, read_run
from cofair.results.table_cells import LAST_ROUNDS

FAR = 5.0  # points of accuracy


class Rounds:
    """The tested rounds of a run with a γ, and the accuracy of the best client in all of them."""

    def __init__(self, run: ReportedRun) -> None:
        """Read them."""
        history = run.outcome.history
        fair = [record for record in history if record.fairness is not None]
        self.all, self.top = _columns([(record.round, 100 * max(record.accuracies)) for record in history])
        self.rounds, self.fairness = _columns([(record.round, record.fairness or 0.0) for record in fair])
        self.end = int(self.all[-1])

    def best(self, every: int = 1) -> float:
        """Return the best γ of every so many rounds and the last ones."""
        kept = (self.rounds % every == 0) | (self.rounds > self.end - LAST_ROUNDS)
        return float(self.fairness[kept].max())

    def last(self) -> float:
        """Return the mean γ of the last rounds."""
        return float(self.fairness[self.rounds > self.end - LAST_ROUNDS].mean())

    def top_until(self, until: int) -> float:
        """Return the best accuracy of a client until a round."""
        return float(self.top[self.all <= until].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--cycle", type=int)
    parser.add_argument("--until", type=int, nargs="*", default=[])
    parser.add_argument("--only", default="", help="runs whose folders' names hold this")
    given = parser.parse_args()
    runs = {path.name: path for path in sorted(given.folder.glob("*")) if path.is_dir() and given.only in path.name}
    found = {name: Rounds(read_run(path)) for name, path in runs.items()}
    if not found:
        parser.error(f"there are no such runs in {given.folder}")
    cells: dict[str, list[Rounds]] = {}
    for name, own in found.items():
        cells.setdefault(name.rpartition("-seed")[0], []).append(own)
    for name, seeds in cells.items():
        gamma = [_mean([own.best() for own in seeds]), _mean([own.best(given.every) for own in seeds])]
        gamma.append(_mean([own.last() for own in seeds]))
        tops = {f"until {until}": _mean([own.top_until(until) for own in seeds]) for until in given.until}
        tops = tops or {"best client": _mean([own.top_until(own.end) for own in seeds])}
        text = ", ".join(f"{label} {value:.1f}" for label, value in tops.items())
        told = f"γ {gamma[0]:.1f}, of every {given.every} {gamma[1]:.1f}, last {gamma[2]:.1f}"
        print(f"{name} ({len(seeds)}): {told}; {text}")
    if given.cycle:
        print(in_cycle(list(found.values()), given.cycle))


def in_cycle(runs: Sequence[Rounds], cycle: int) -> str:
    """Tell how γ goes within a cycle of rounds, and where best rounds stand."""
    rounds, fairness = (np.concatenate([getattr(own, name) for own in runs]) for name in ("rounds", "fairness"))
    late = rounds > 2 * cycle
    by_place = {place: fairness[late & (rounds % cycle == place)] for place in range(cycle)}
    means = ", ".join(f"{place}: {values.mean():.1f}" for place, values in by_place.items() if len(values))
    best = [int(own.rounds[own.fairness.argmax()]) for own in runs]
    places = ", ".join(f"{place}: {count}" for place, count in sorted(Counter(t % cycle for t in best).items()))
    early = sum(t <= 2 * cycle for t in best)
    far = sum(own.top[own.all == t][0] < own.top.max() - FAR for own, t in zip(runs, best, strict=True))
    return (
        f"mean γ by round modulo {cycle}: {means}\n"
        f"best rounds of {len(runs)} runs, modulo {cycle}: {places}; {early} by round {2 * cycle}, "
        f"{far} with a best client more than {FAR:g} points below its best"
    )


def _columns(pairs: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    rounds, values = zip(*pairs, strict=True)
    return np.array(rounds), np.array(values)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


if __name__ == "__main__":
    main()
