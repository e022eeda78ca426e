"""Contract against other methods, from a finished sweep: what its targets ask for, as tables for a page.

    cofair sweep benchmarks/contract.toml --out results/contract
    python -m benchmarks.promises results/contract
    python -m benchmarks.promises results/contract --until 500  # as if all had ended there, unfinished runs, too
    python -m benchmarks.promises results/contract results/others --methods contract,iafl --seed 0

Misses are of test accuracies against promises, in the second half of a run: the largest of a round's ten. The same
without the mean difference of the round tells what is left when one set of samples is easier than the other. Who is
outside the α-BCF band is counted in the last ten rounds. Of runs that are cut off the tests of the last fifth count.
"""

import argparse
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cofair import metrics
from cofair.report.reported_runs import ReportedRun, read_run
from cofair.results.record import Record
from cofair.results.table_cells import LAST_ROUNDS, Cell

WITHIN = 1.5  # points that a promise may be missed by
FAIR = 95  # γ from which on a method's mean reward is compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--methods", help="some of them, with commas between; others are left out")
    parser.add_argument("--seed", type=int, help="runs of this seed only")
    parser.add_argument("--until", type=int, help="the round with which to end")
    given = parser.parse_args()
    for folder in given.folders:
        if not folder.is_dir():
            parser.error(f"there is no folder {folder}")
    runs = [read_run(run) for folder in given.folders for run in sorted(folder.iterdir()) if run.is_dir()]
    wanted = {run.outcome.method for run in runs} if given.methods is None else set(given.methods.split(","))
    places: dict[tuple[str, str], dict[str, list[ReportedRun]]] = {}
    for run in runs:
        if run.outcome.method not in wanted or given.seed not in (None, run.outcome.seed):
            continue
        run, ended = (run, run.finished) if given.until is None else cut_off(run, given.until)
        if ended:
            place = run.setting("federation", "data"), run.setting("federation", "scene")
            places.setdefault(place, {}).setdefault(run.outcome.method, []).append(run)
    for rule in ("last", "best"):
        compared(places, rule)
    if any("contract" in methods for methods in places.values()):
        kept(places)
        beside(places)


def cut_off(run: ReportedRun, until: int) -> tuple[ReportedRun, bool]:
    """Return a run as if it had ended with a round, and whether it came that far and was tested before."""
    until = min(until, run.rounds)
    came = run.outcome.history[-1].round >= until
    history = tuple(record for record in run.outcome.history if record.round <= until)
    training = {**run.experiment["training"], "rounds": until}
    short = replace(
        run, outcome=replace(run.outcome, history=history), experiment={**run.experiment, "training": training}
    )
    return short, came and bool(history and end(short))


def end(run: ReportedRun) -> tuple[Record, ...]:
    """Return the tests that count by the rule `last`: of the last ten rounds, or of the last fifth of a cut-off run."""
    history = run.outcome.history
    first = run.rounds - LAST_ROUNDS if history[-1].last else 0.8 * run.rounds
    return tuple(record for record in history if record.round > first)


def cells_of(run: ReportedRun, rule: str) -> list[Cell]:
    """Return a run's cell by a rule; by `last` one a test that counts, which are to be averaged."""
    if rule != "last":
        return [run.outcome.cell(rule)]
    return [replace(run.outcome, history=(record,)).cell(rule) for record in end(run)]


def compared(places: dict[tuple[str, str], dict[str, list[ReportedRun]]], rule: str) -> None:
    """Print γ, best and mean accuracy and rate of each method by a rule, and how contract stands beside the others."""
    names = list(dict.fromkeys(name for methods in places.values() for name in methods))
    ours = "contract" in names
    print(f"\nBy the rule `{rule}`, γ / max % / mean % / rate:\n")
    more = f" best client against the best other | highest mean of γ ≥ {FAIR} |" if ours else ""
    print(f"| data, scene | {' | '.join(names)} |{more}\n| --- |{' --- |' * (len(names) + 2 * ours)}")
    for (data, scene), methods in places.items():
        cells = {name: [cell for run in own for cell in cells_of(run, rule)] for name, own in methods.items()}
        told = [" / ".join(shown(cells[name])) if name in cells else "" for name in names]
        if ours and "contract" in cells and len(cells) > 1:  # a sweep may be unfinished
            top = {name: mean(own, "max") for name, own in cells.items()}
            others = max(value for name, value in top.items() if name != "contract")
            fair = {name: mean(own, "mean") for name, own in cells.items() if mean(own, "fairness") >= FAIR}
            told += [f"{100 * (top['contract'] - others):+.2f}", max(fair, key=fair.__getitem__) if fair else "nobody"]
        elif ours:
            told += ["", ""]
        print(f"| {data} {scene} | {' | '.join(told)} |")


def shown(cells: Sequence[Cell]) -> list[str]:
    """Return the means of a method's cells as text."""
    fairness = mean(cells, "fairness")  # undefined where all get the same
    accuracies = [f"{100 * mean(cells, name):.1f}" for name in ("max", "mean")]
    return ["–" if np.isnan(fairness) else f"{fairness:.1f}", *accuracies, f"{mean(cells, 'rate'):.2f}"]


def mean(cells: Sequence[Cell], name: str) -> float:
    """Return the mean over seeds and tests of a quantity, without those where it is undefined."""
    known = [value for cell in cells if (value := getattr(cell, name)) is not None]
    return statistics.fmean(known) if known else float("nan")


def kept(places: dict[tuple[str, str], dict[str, list[ReportedRun]]]) -> None:
    """Print how well contract kept its promises."""
    print(
        f"\n| data, scene | largest miss, median | 9 of 10 rounds below | rounds below {WITHIN:g} | the same without ",
        end="",
    )
    print("the round's mean | on the validation set, mean | tested less promised, mean |\n| --- |" + " --- |" * 6)
    for (data, scene), methods in places.items():
        tested, centred, validated, shared = [], [], [], []
        for run in methods.get("contract", ()):
            for record in run.outcome.history:
                if record.round > run.rounds / 2 and record.promised is not None and record.validated is not None:
                    promised = 100 * np.array(record.promised)
                    off = 100 * np.array(record.accuracies) - promised
                    tested.append(np.nanmax(np.abs(off)))  # who was removed is promised nothing
                    shared.append(np.nanmean(off))
                    centred.append(np.nanmax(np.abs(off - shared[-1])))
                    validated.append(np.nanmax(np.abs(100 * np.array(record.validated) - promised)))
        if tested:
            within, alike = (float(np.mean(np.array(values) < WITHIN)) for values in (tested, centred))
            print(
                f"| {data} {scene} | {np.median(tested):.1f} | {np.quantile(tested, 0.9):.1f} | {100 * within:.0f} % | "
                f"{100 * alike:.0f} % | {np.mean(validated):.1f} | {np.mean(shared):+.1f} |"
            )


def beside(places: dict[tuple[str, str], dict[str, list[ReportedRun]]]) -> None:
    """Print what contract downloads, who was outside the band, and whether the γ told at the start was reached."""
    print(
        "\n| data, scene | download, % (fedrac) | γ told | reached or at most so much below | client most often above ",
        end="",
    )
    print("its bound | most often no better than alone |\n| --- |" + " --- |" * 5)
    for (data, scene), methods in places.items():
        told, short, above, below = [], [], [], []
        for run in methods.get("contract", ()):
            found = re.search(r"fairness of ([0-9.]+)", " ".join(run.facts.get("notes", ())))
            gamma = mean(cells_of(run, "last"), "fairness")
            if found and not np.isnan(gamma):
                told.append(float(found[1]))
                short.append(told[-1] - gamma)
            c = np.sort(run.outcome.contributions)
            order = np.argsort(run.outcome.contributions)
            for record in end(run):
                rewards = np.array(record.accuracies)[order]
                lower, upper = metrics.alpha_bounds(c, rewards)
                above.append(rewards > upper + 1e-12)
                below.append(rewards <= lower)
        if above:
            travels = [f"{100 * downloads(methods.get(name, ())):.0f}" for name in ("contract", "fedrac")]
            reached, most = sum(gap <= 0 for gap in short), 100 * np.mean(above, 0).max()
            expected = "– | –"
            if told:
                expected = f"{min(told):.1f} to {max(told):.1f} | {reached} of {len(short)}, {max(0.0, *short):.2f}"
            print(
                f"| {data} {scene} | {travels[0]} ({travels[1]}) | {expected} | "
                f"{most:.0f} % of rounds | {100 * np.mean(below, 0).max():.0f} % |"
            )


def downloads(runs: Sequence[ReportedRun]) -> float:
    """Return the share of a model that a client received a round, the mean over clients and runs."""
    return statistics.fmean([run.outcome.download for run in runs]) if runs else float("nan")


if __name__ == "__main__":
    main()
