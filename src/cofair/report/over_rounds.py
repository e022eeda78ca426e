"""Plots over rounds: rewards, reputations, who held which neuron; many clients and neurons are summarised."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cofair.report.plots import Band, Heat, Lines, Mark, Plot
from cofair.report.reported_runs import ReportedRun

LINES = 20  # more clients than this are summarised: 1,000 lines show nothing
HEAT = (256, 100)  # rows and columns of a heat map; more are averaged with their neighbours
Floats = npt.NDArray[np.float64]

_IN_ORDER = "lines are coloured from yellow (brought least) over green and blue to violet (brought most)"
_SUMMARISED = "the bands hold all clients, the middle 80 % and the middle half, the line is the median"


def accuracy_over_rounds(run: ReportedRun) -> Plot:
    """Figure 5 of FedSAC: the accuracy of every client's reward over the rounds."""
    values = 100 * np.array([record.accuracies for record in run.outcome.history])
    low, high = values[-1].min(), values[-1].max()
    caption = f"After round {run.outcome.history[-1].round}{seed_of(run)} the "
    if len(values[-1]) == 1:
        caption += f"reward has {low:.1f} %."
    else:
        colours = _IN_ORDER if len(values[-1]) <= LINES else _SUMMARISED
        caption += f"rewards lie between {low:.1f} and {high:.1f} %; {colours}."
    return Plot(
        "accuracy_over_rounds", f"{run.metric[0].upper()}{run.metric[1:]} over the rounds", caption, "round",
        f"{run.metric} on the test set, %", over_rounds(run, values),
    )  # fmt: skip


def reputation_over_rounds(run: ReportedRun) -> Plot:
    """Figure 4 of CGSV, Figure 2 of FedRAC: what the server believes of each client."""
    values = np.array([record.reputation for record in run.outcome.history if record.reputation is not None])
    rounds = [record.round for record in run.outcome.history if record.reputation is not None]
    best = run.outcome.names[int(values[-1].argmax())]
    caption = f"In the end client {best} has the highest reputation{seed_of(run)}."
    if len(values[-1]) == 1:
        caption = f"In the end its reputation is {values[-1][0]:.3g}{seed_of(run)}."
    return Plot(
        "reputation_over_rounds", "Reputation over the rounds", caption, "round", "reputation",
        over_rounds(run, values, rounds),
    )  # fmt: skip


def neuron_allocation(run: ReportedRun) -> Plot:
    """FedRAC's allocation frequency: what share of the clients held each neuron, over the rounds."""
    records = [record for record in run.outcome.history if record.allocation is not None]
    values = np.array([record.allocation for record in records]).T
    mean = values.mean(1)
    neurons = np.arange(len(values), dtype=np.float64)
    rounds = np.array([record.round for record in records], dtype=np.float64)
    grouped = len(values) > HEAT[0]
    values, neurons, rounds = _coarser(values, 0), _coarser(neurons, 0), _coarser(rounds, 0, HEAT[1])
    values = _coarser(values, 1, HEAT[1])
    caption = (
        f"Where it is dark, few clients held the neuron in that round; over the whole run a neuron was held by "
        f"{100 * mean.min():.0f} to {100 * mean.max():.0f} % of the clients{seed_of(run)}."
    )
    heat = Heat("share of clients", tuple(rounds.tolist()), tuple(neurons.tolist()), tuple(map(tuple, values.tolist())))
    label = "neuron (neighbours averaged)" if grouped else "neuron"
    return Plot("neuron_allocation", "How many clients train each neuron", caption, "round", label, (heat,))


def over_rounds(run: ReportedRun, values: Floats, rounds: Sequence[int] | None = None) -> tuple[Mark, ...]:
    """Return values (T, N) as one line per client, or as bands where there are many clients."""
    x = tuple(float(t) for t in (rounds or [record.round for record in run.outcome.history]))
    if values.shape[1] <= LINES:
        x, values = _with_gaps(x, values, run.missing)
        place = np.argsort(np.argsort(run.outcome.contributions, kind="stable"))
        most = len(place) - 1
        return tuple(
            Lines(
                name,
                x,
                tuple(None if v != v else v for v in values[:, i].tolist()),
                order=float(place[i] / most) if most else None,
            )
            for i, name in enumerate(run.outcome.names)
        )
    marks: list[Mark] = []
    for name, low, high in (("all", 0, 100), ("middle 80 %", 10, 90), ("middle half", 25, 75)):
        edges = np.nanpercentile(values, [low, high], axis=1)
        marks.append(Band(name, x, tuple(edges[0].tolist()), tuple(edges[1].tolist())))
    marks.append(Lines("median", x, tuple(np.nanmedian(values, axis=1).tolist()), order=1.0))
    return tuple(marks)


def _with_gaps(x: tuple[float, ...], values: Floats, missing: Sequence[int]) -> tuple[tuple[float, ...], Floats]:
    """Break lines where tested rounds are missing, instead of drawing what nobody measured."""
    gaps = [float(t) for t in missing if x[0] < t < x[-1] and t not in x]
    if not gaps:
        return x, values
    all_x = np.array([*x, *gaps])
    all_values = np.concatenate([values, np.full((len(gaps), values.shape[1]), np.nan)])
    order = np.argsort(all_x, kind="stable")
    return tuple(all_x[order].tolist()), all_values[order]


def _coarser(values: Floats, axis: int, most: int = HEAT[0]) -> Floats:
    """Average neighbours along an axis until at most `most` are left."""
    if values.shape[axis] <= most:
        return values
    parts = np.array_split(values, most, axis)
    return np.stack([part.mean(axis) for part in parts], axis)


def seed_of(run: ReportedRun) -> str:
    """Return the seed of a run in brackets."""
    return f" (seed {run.outcome.seed})"
