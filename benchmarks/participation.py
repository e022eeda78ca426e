"""What it costs that clients come and go: digits, scene pow, 10 clients, against runs in which all always answer.

python -m benchmarks.participation                           # every method, three seeds
python -m benchmarks.participation --methods fedsac fedrac --seeds 5 --rounds 200

A cell reads change of γ / change of the mean accuracy in points, means over seeds, read by the rule `last`.
"""

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

from benchmarks.measure import prepare_all
from cofair import methods, metrics
from cofair.config.experiment import Experiment
from cofair.runs.run import drive

ALWAYS = "everybody always answers"
Cell = tuple[float | None, float]  # γ, mean accuracy


def cases(last: int) -> dict[str, dict[str, Any]]:
    """Return who comes and goes."""
    return {
        ALWAYS: {},
        "dropout 30 %": {"dropout": 0.3},
        "half of them sampled": {"fraction": 0.5},
        "half sampled, dropout 30 %": {"fraction": 0.5, "dropout": 0.3},
        "three join halfway": {"join": [1, 1, last // 2, 1, 1, last // 2, 1, 1, last // 2]},
        "three leave halfway": {"leave": [0, 0, last // 2, 0, 0, last // 2, 0, 0, last // 2]},
    }


def run(job: tuple[str, int], given: argparse.Namespace) -> dict[str, Cell]:
    """Run every method once with the clients of one case."""
    torch.set_num_threads(1)
    case, seed = job
    experiment = Experiment.from_dict(
        {
            "training": {"rounds": given.rounds},
            "run": {"seed": seed, "evaluate_every": given.rounds, "device": "cpu"},
            "participation": cases(given.rounds)[case],
        }
    )
    made = [methods.make(name, {}) for name in given.methods]
    found: dict[str, Cell] = {}
    for run in prepare_all(experiment, made):
        method = run.experiment.method
        final = [record.accuracies for record in drive(run).records][-10:]
        gammas = [metrics.fairness(run.brought.contributions.tolist(), row) for row in final]
        known = [gamma for gamma in gammas if gamma is not None]
        accuracy = statistics.fmean(value for row in final for value in row)
        found[method.name] = (statistics.fmean(known) if known else None, accuracy)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [name for name in methods.names() if name != "standalone"]
    parser.add_argument("--methods", nargs="*", default=every, choices=every)
    parser.add_argument("--cases", nargs="*", default=[case for case in cases(1) if case != ALWAYS], choices=cases(1))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    shown = [ALWAYS, *given.cases]
    jobs = [(case, seed) for case in shown for seed in range(given.seeds)]
    with ProcessPoolExecutor(given.workers) as pool:
        found = dict(zip(jobs, pool.map(partial(run, given=given), jobs), strict=True))
    print(f"digits, pow, 10 clients, {given.rounds} rounds, {given.seeds} seeds, {time.perf_counter() - began:.0f} s\n")
    print(f"| method | {' | '.join(shown)} |\n| --- |{' --- |' * len(shown)}")
    for name in given.methods:
        cells = []
        for case in shown:
            own = [found[case, seed][name] for seed in range(given.seeds)]
            plain = [found[ALWAYS, seed][name] for seed in range(given.seeds)] if case != ALWAYS else None
            cells.append(_cell(own, plain))
        print(f"| {name} | {' | '.join(cells)} |")


def _cell(own: list[Cell], plain: list[Cell] | None) -> str:
    """Return γ and accuracy, or what they change by."""
    if plain is None:
        plain = [(0.0, 0.0)] * len(own)
        signs = ".1f", ".1f"
    else:
        signs = "+.1f", "+.1f"
    gammas = [a[0] - b[0] for a, b in zip(own, plain, strict=True) if a[0] is not None and b[0] is not None]
    accuracy = 100 * statistics.fmean(a[1] - b[1] for a, b in zip(own, plain, strict=True))
    return f"{format(statistics.fmean(gammas), signs[0]) if gammas else '–'} / {format(accuracy, signs[1])}"


if __name__ == "__main__":
    main()
