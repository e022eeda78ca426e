"""What clients hold, from a finished sweep with `run.held`: what the promise about it asks for, as a table for a page.

    cofair sweep benchmarks/held.toml --out results/held
    python -m benchmarks.held results/held

γ delivered is the mean of the last ten rounds; the others are of the last round: of what is kept (the newest value of
everything), of what clients choose (held), and of the best of everything on the test set (a bound that nobody can
choose). Rate is the share of clients whose held model is within α-BCF. Above its promise is how many points the client
that most exceeds it holds more, and in how many of ten clients it is more than three. Before that table another one
compares methods: γ delivered / held, and the best client.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cofair import metrics
from cofair.report.reported_runs import ReportedRun, read_run

ABOVE = 0.03  # accuracy that a client may hold more than it was promised


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    given = parser.parse_args()
    for folder in given.folders:
        if not folder.is_dir():
            parser.error(f"there is no folder {folder}")
    runs = [read_run(run) for folder in given.folders for run in sorted(folder.iterdir()) if run.is_dir()]
    rows: dict[tuple[str, str, str], list[ReportedRun]] = {}
    for run, label in zip(runs, labels(runs), strict=True):
        if run.outcome.held is not None:
            key = run.setting("federation", "data"), run.setting("federation", "scene"), label
            rows.setdefault(key, []).append(run)
    names = sorted({name for *_, name in rows})
    print(f"| data, scene | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}")
    for data, scene in sorted({(data, scene) for data, scene, _ in rows}):
        print(f"| {data} {scene} | {' | '.join(short(rows.get((data, scene, name), ())) for name in names)} |")
    print(
        "\n| data, scene | method | seeds | γ delivered | γ kept | γ held | γ bound | best client, % | weakest: alone, "
        "delivered, held, % | rate held | above its promise | download, % |\n| --- | --- |" + " --- |" * 10
    )
    for (data, scene, name), own in sorted(rows.items()):
        print(f"| {data} {scene} | {name} | {len(own)} | {' | '.join(cells(own))} |")


def labels(runs: Sequence[ReportedRun]) -> list[str]:
    """Return the methods' names, with the settings in which runs of one method differ."""
    found = []
    for run in runs:
        rivals = [other.experiment["method"] for other in runs if other.outcome.method == run.outcome.method]
        own = run.experiment["method"]
        differing = [f"{key} {own[key]}" for key in own if any(other.get(key) != own[key] for other in rivals)]
        found.append(" · ".join([run.outcome.method, *differing]))
    return found


def short(runs: Sequence[ReportedRun]) -> str:
    """Return a method's cell in the table that compares methods."""
    if not runs:
        return "–"
    delivered, _, held, _, best, *_ = cells(runs)
    return f"{delivered} / {held}, {best} %"


def cells(runs: Sequence[ReportedRun]) -> list[str]:
    """Return the cells of a method's row, means over seeds."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float | None) -> None:
        if value is not None:
            found.setdefault(name, []).append(value)

    for run in runs:
        held = run.outcome.held
        assert held is not None
        c, weakest = held.contributions, held.contributions.argmin()
        note("delivered", run.outcome.cell("last").fairness)
        for name, accuracies in (("kept", held.parts["kept"]), ("held", held.accuracies), ("most", held.parts["most"])):
            note(name, metrics.fairness(c, accuracies))
        note("best", run.outcome.cell("last").max)
        for name, accuracies in (("alone", c), ("got", held.parts["delivered"]), ("has", held.accuracies)):
            note(name, 100 * float(accuracies[weakest]))
        note("rate", metrics.rate(c, held.accuracies))
        note("download", run.outcome.download)
        promised = run.outcome.history[-1].promised
        if promised is not None:
            above = held.accuracies - np.array(promised)
            note("above", 100 * float(np.nanmax(above)))
            note("many", 10 * float((above > ABOVE).mean()))
    means = {name: statistics.fmean(values) for name, values in found.items()}

    def text(name: str, digits: int = 1, factor: float = 1) -> str:
        return f"{factor * means[name]:.{digits}f}" if name in means else "–"

    return [
        *(text(name) for name in ("delivered", "kept", "held", "most")), text("best", factor=100),
        f"{text('alone')}, {text('got')}, {text('has')}", text("rate", 2),
        f"{text('above')}; {text('many')} of 10", text("download", 0, 100),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
