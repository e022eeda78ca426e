"""What is shown of runs: the papers' figures, as descriptions that the page and the static figures draw."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cofair import metrics
from cofair.report.plots import Band, Bars, Heat, Lines, Mark, Plot, Points
from cofair.report.read import Entry, Run, comparison
from cofair.report.words import count, data_size, listed

LINES = 20  # more clients than this are summarised: 1,000 lines show nothing
BARS = 40
HEAT = (256, 100)  # rows and columns of a heat map; more are averaged with their neighbours
Floats = npt.NDArray[np.float64]


def of_comparison(entries: Sequence[Entry]) -> list[Plot]:
    """Return the plots that compare entries."""
    return [fairness_against_accuracy(entries)] if len(entries) > 1 else []


def of_entry(entry: Entry) -> list[Plot]:
    """Return the plots of one method: means over its seeds, what goes over rounds from its first one."""
    run = entry.runs[0]
    plots = [contribution_and_reward(entry)]
    if entry.reference:  # nothing else happens when everybody trains alone
        return plots
    if len(run.outcome.history) > 1:
        plots.append(accuracy_over_rounds(run))
        if run.outcome.history[-1].reputation is not None:
            plots.append(reputation_over_rounds(run))
    if run.contributions_are_accuracies:
        plots.append(bounds(entry))
    if any(record.allocation is not None for record in run.outcome.history):
        plots.append(neuron_allocation(run))
    plots.append(download(entry))
    return plots


def fairness_against_accuracy(entries: Sequence[Entry]) -> Plot:
    """FedSAC's Figure 3: the best client's accuracy and γ of every method."""
    frame = comparison(entries).to_frame()
    known = frame[frame["fairness"].notna()]
    unit = entries[0].runs[0].metric
    points = Points(
        "methods",
        tuple(100 * known["max"]),
        tuple(known["fairness"]),
        tuple(known["method"]),
        tuple(100 * known["max_std"].fillna(0)),
        tuple(known["fairness_std"].fillna(0)),
    )
    missing = [str(name) for name in frame[frame["fairness"].isna()]["method"]]
    caption = "The upper right corner is where a method should be: fair, and good for the best client."
    alone = [entry.label for entry in entries if entry.reference]
    if len(ranked := known[~known["method"].isin(alone)]):
        k = known.index.get_loc(ranked["fairness"].idxmax())
        caption += f" Fairest is {points.labels[k]} (γ {points.y[k]:.1f}, best client {points.x[k]:.1f} %)."
    if missing:
        caption += f" Fairness is undefined for {listed(missing)}: all clients get models of the same worth."
    return Plot(
        "fairness_against_accuracy", "Fairness against accuracy", caption, f"{unit} of the best client, %",
        "fairness γ", (points,),
    )  # fmt: skip


def contribution_and_reward(entry: Entry) -> Plot:
    """Figures 4 and 6 of FedSAC: what each client brought and got."""
    run, c, a = entry.runs[0], _contributions(entry), _accuracies(entry)
    marks: tuple[Mark, ...]
    caption = _fairness_sentence(entry)
    if run.contributions_are_accuracies and len(c) <= BARS:
        names = run.outcome.names
        marks = (Bars("brought", names, tuple(100 * c)), Bars("got", names, tuple(100 * a)))
        caption += _gain_sentence(c, a)
        x_label, y_label = "client", f"{run.metric}, %"
    else:
        scale = 100 if run.contributions_are_accuracies else 1
        marks = (Points("clients", tuple(scale * c), tuple(100 * a), run.outcome.names),)
        measure = run.setting("contribution", "measure") or "contribution"
        x_label = f"brought: {run.metric} alone, %" if scale == 100 else f"brought: {measure}"
        y_label = f"got: {run.metric}, %"
    return Plot("contribution_and_reward", "What each client brought and got", caption, x_label, y_label, marks)


def accuracy_over_rounds(run: Run) -> Plot:
    """Figure 5 of FedSAC: the accuracy of every client's reward over the rounds."""
    values = 100 * np.array([record.accuracies for record in run.outcome.history])
    low, high = values[-1].min(), values[-1].max()
    caption = f"After round {run.outcome.history[-1].round}{_seed(run)} the "
    if len(values[-1]) == 1:
        caption += f"reward has {low:.1f} %."
    else:
        colours = _IN_ORDER if len(values[-1]) <= LINES else _SUMMARISED
        caption += f"rewards lie between {low:.1f} and {high:.1f} %; {colours}."
    return Plot(
        "accuracy_over_rounds", f"{run.metric[0].upper()}{run.metric[1:]} over the rounds", caption, "round",
        f"{run.metric} on the test set, %", _over_rounds(run, values),
    )  # fmt: skip


def reputation_over_rounds(run: Run) -> Plot:
    """Figure 4 of CGSV, Figure 2 of FedRAC: what the server believes of each client."""
    values = np.array([record.reputation for record in run.outcome.history if record.reputation is not None])
    rounds = [record.round for record in run.outcome.history if record.reputation is not None]
    best = run.outcome.names[int(values[-1].argmax())]
    caption = f"In the end the server thinks most of client {best}{_seed(run)}."
    if len(values[-1]) == 1:
        caption = f"In the end its reputation is {values[-1][0]:.3g}{_seed(run)}."
    return Plot(
        "reputation_over_rounds", "Reputation over the rounds", caption, "round", "reputation",
        _over_rounds(run, values, rounds),
    )  # fmt: skip


def bounds(entry: Entry) -> Plot:
    """The α-BCF band of each client: better than alone, not better than its contribution deserves."""
    run, c, a = entry.runs[0], _contributions(entry), _accuracies(entry)
    lower, upper = metrics.alpha_bounds(c, a)
    inside = metrics.within_alpha_bound(c, a)
    order = np.argsort(c, kind="stable") if len(c) > BARS else np.arange(len(c))
    x: Floats | tuple[str, ...]
    x = np.arange(1, len(c) + 1).astype(float) if len(c) > BARS else run.outcome.names
    place = {int(client): x[k] for k, client in enumerate(order)}
    marks: list[Mark] = [
        Band(
            "what it is entitled to", tuple(x), tuple(100 * lower[order]), tuple(100 * np.maximum(upper, lower)[order])
        )
    ]
    for name, which in (("reward inside", inside), ("reward outside", ~inside)):
        chosen = [int(i) for i in order if which[i]]
        if chosen:
            marks.append(Points(name, tuple(place[i] for i in chosen), tuple(100 * a[i] for i in chosen)))
    number = f"{int(inside.sum()):,} of {count(len(c), 'reward')} {'is' if len(c) == 1 else 'are'} inside"
    caption = (
        f"{number}: above what the client reaches alone, and not above what its contribution earns it (α-BCF, α = 0.5)."
    )
    label = "clients, from the least contribution to the largest" if len(c) > BARS else "client"
    return Plot("bounds", "Who is inside the bounds", caption, label, f"{run.metric}, %", tuple(marks))


def neuron_allocation(run: Run) -> Plot:
    """FedRAC's allocation frequency: how many of the clients held each neuron, over the rounds."""
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
        f"{100 * mean.min():.0f} to {100 * mean.max():.0f} % of the clients{_seed(run)}."
    )
    heat = Heat("share of clients", tuple(rounds.tolist()), tuple(neurons.tolist()), tuple(map(tuple, values.tolist())))
    label = "neuron (neighbours averaged)" if grouped else "neuron"
    return Plot("neuron_allocation", "How many clients train each neuron", caption, "round", label, (heat,))


def download(entry: Entry) -> Plot:
    """The share of a whole model that each client received a round."""
    run = entry.runs[0]
    shares = np.mean([own.outcome.history[-1].download for own in entry.runs], axis=0)
    rounds, size = run.outcome.history[-1].round, int(run.facts.get("parameters", 0))
    width = 8 if run.setting("run", "precision") == "float64" else 4
    whole = rounds * size * width * len(shares)
    saved = whole * (1 - float(shares.mean()))
    caption = f"On average {100 * shares.mean():.0f} % of a model travels to a client in a round"
    if size:
        everything = f"the {data_size(whole)} of {count(rounds, 'round')} with the whole model for everybody"
        caption += (
            f": {data_size(saved)} less than {everything}" if saved > 0.005 * whole
            else f": {data_size(-saved)} more than {everything}" if saved < -0.005 * whole
            else f", the whole model: {data_size(whole)} over {count(rounds, 'round')}"
        )  # fmt: skip
    marks: tuple[Mark, ...]
    if len(shares) <= BARS:
        marks, x_label = (Bars("received", run.outcome.names, tuple(100 * shares)),), "client"
    else:
        c = _contributions(entry)
        marks, x_label = (Points("clients", tuple(c), tuple(100 * shares), run.outcome.names),), "contribution"
    return Plot("download", "What travels to each client", caption + ".", x_label, "% of a whole model a round", marks)


_IN_ORDER = "lines are coloured from yellow (brought least) over green and blue to violet (brought most)"
_SUMMARISED = "the bands hold all clients, the middle 80 % and the middle half, the line is the median"


def _over_rounds(run: Run, values: Floats, rounds: Sequence[int] | None = None) -> tuple[Mark, ...]:
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
        edges = np.percentile(values, [low, high], axis=1)
        marks.append(Band(name, x, tuple(edges[0].tolist()), tuple(edges[1].tolist())))
    marks.append(Lines("median", x, tuple(np.median(values, axis=1).tolist()), order=1.0))
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
    """Average neighbours along an axis until at most so many are left."""
    if values.shape[axis] <= most:
        return values
    parts = np.array_split(values, most, axis)
    return np.stack([part.mean(axis) for part in parts], axis)


def _contributions(entry: Entry) -> Floats:
    return np.asarray(np.mean([run.outcome.contributions for run in entry.runs], axis=0), dtype=np.float64)


def _accuracies(entry: Entry) -> Floats:
    return np.asarray(np.mean([run.outcome.accuracies for run in entry.runs], axis=0), dtype=np.float64)


def _fairness_sentence(entry: Entry) -> str:
    known = [gamma for outcome in entry.outcomes if (gamma := outcome.fairness) is not None]
    if len(entry.runs[0].outcome.names) == 1:
        return "Fairness γ takes two clients or more."
    if not known:
        return "Fairness γ is undefined here: all contributions or all rewards are the same."
    seeds = "" if len(entry.runs) == 1 else f", mean of {len(known)} seeds"
    return f"Fairness γ is {np.mean(known):.1f}{seeds} (100 would be perfectly in proportion)."


def _gain_sentence(c: Floats, a: Floats) -> str:
    gained, lost = int((a > c).sum()), int((a < c).sum())
    if len(c) == 1:
        return ""
    if gained == len(c):
        return f" All {len(c):,} clients got more than they reach alone."
    if not gained and not lost:
        return " Everybody has just what it reaches alone."
    return f" {gained:,} of {count(len(c), 'client')} got more than they reach alone, {lost:,} got less."


def _seed(run: Run) -> str:
    return f" (seed {run.outcome.seed})"
