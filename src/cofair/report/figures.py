"""The plots of a report, as descriptions that the page and the figures for papers draw."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cofair import metrics
from cofair.report.held_section import promised_delivered_held
from cofair.report.over_rounds import accuracy_over_rounds, neuron_allocation, reputation_over_rounds
from cofair.report.plots import BARS, Band, Bars, Mark, Plot, Points
from cofair.report.promise_section import misses_over_rounds, promises
from cofair.report.reported_runs import ReportedMethod, comparison
from cofair.report.words import count, data_size, listed

Floats = npt.NDArray[np.float64]


def of_comparison(methods: Sequence[ReportedMethod]) -> list[Plot]:
    """Return the plots that compare methods."""
    return [fairness_against_accuracy(methods)] if len(methods) > 1 else []


def of_method(method: ReportedMethod) -> list[Plot]:
    """Return the plots of one method: means over its seeds; those over rounds are of its first seed."""
    run = method.runs[0]
    plots = [contribution_and_reward(method)]
    if method.reference:  # nothing else happens when clients train alone
        return plots
    if len(run.outcome.history) > 1:
        plots.append(accuracy_over_rounds(run))
        if run.outcome.history[-1].reputation is not None:
            plots.append(reputation_over_rounds(run))
    if run.contributions_are_accuracies:
        plots.append(bounds(method))
    if (made := promises(run)) is not None and len(made.rounds) > 1:
        plots.append(misses_over_rounds(run, made))
    if (held := promised_delivered_held(method)) is not None:
        plots.append(held)
    if any(record.allocation is not None for record in run.outcome.history):
        plots.append(neuron_allocation(run))
    plots.append(download(method))
    return plots


def fairness_against_accuracy(methods: Sequence[ReportedMethod]) -> Plot:
    """FedSAC's Figure 3: the best client's accuracy and γ of every method."""
    frame = comparison(methods).to_frame()
    known = frame[frame["fairness"].notna()]
    unit = methods[0].runs[0].metric
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
    alone = [method.label for method in methods if method.reference]
    if len(ranked := known[~known["method"].isin(alone)]):
        k = known.index.get_loc(ranked["fairness"].idxmax())
        caption += f" Fairest is {points.labels[k]} (γ {points.y[k]:.1f}, best client {points.x[k]:.1f} %)."
    if missing:
        caption += f" Fairness is undefined for {listed(missing)}: all clients get models of the same worth."
    return Plot(
        "fairness_against_accuracy", "Fairness against accuracy", caption, f"{unit} of the best client, %",
        "fairness γ", (points,),
    )  # fmt: skip


def contribution_and_reward(method: ReportedMethod) -> Plot:
    """Figures 4 and 6 of FedSAC: what each client brought and got."""
    run, c, a = method.runs[0], _contributions(method), _accuracies(method)
    marks: tuple[Mark, ...]
    caption = _fairness_sentence(method)
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


def bounds(method: ReportedMethod) -> Plot:
    """The α-BCF band of each client: better than alone, not better than its contribution deserves."""
    run, c, a = method.runs[0], _contributions(method), _accuracies(method)
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


def download(method: ReportedMethod) -> Plot:
    """The share of a whole model that each client received per round."""
    run = method.runs[0]
    shares = np.mean([own.outcome.history[-1].download for own in method.runs], axis=0)
    rounds, size = run.outcome.history[-1].round, int(run.facts.get("parameters", 0))
    width = 8 if run.setting("run", "precision") == "float64" else 4
    whole = rounds * size * width * len(shares)
    saved = whole * (1 - float(shares.mean()))
    caption = f"On average {100 * shares.mean():.0f} % of a model travels to a client in a round"
    if size:
        everything = f"the {data_size(whole)} of {count(rounds, 'round')} with the whole model for every client"
        caption += (
            f": {data_size(saved)} less than {everything}" if saved > 0.005 * whole
            else f": {data_size(-saved)} more than {everything}" if saved < -0.005 * whole
            else f", the whole model: {data_size(whole)} over {count(rounds, 'round')}"
        )  # fmt: skip
    marks: tuple[Mark, ...]
    if len(shares) <= BARS:
        marks, x_label = (Bars("received", run.outcome.names, tuple(100 * shares)),), "client"
    else:
        c = _contributions(method)
        marks, x_label = (Points("clients", tuple(c), tuple(100 * shares), run.outcome.names),), "contribution"
    return Plot(
        "download", "What travels to each client", caption + ".", x_label, "% of a whole model per round", marks
    )


def _contributions(method: ReportedMethod) -> Floats:
    return np.asarray(np.mean([run.outcome.contributions for run in method.runs], axis=0), dtype=np.float64)


def _accuracies(method: ReportedMethod) -> Floats:
    return np.asarray(np.mean([run.outcome.accuracies for run in method.runs], axis=0), dtype=np.float64)


def _fairness_sentence(method: ReportedMethod) -> str:
    known = [gamma for outcome in method.outcomes if (gamma := outcome.fairness) is not None]
    if len(method.runs[0].outcome.names) == 1:
        return "Fairness γ needs at least two clients."
    if not known:
        return "Fairness γ is undefined here: all contributions or all rewards are the same."
    seeds = "" if len(method.runs) == 1 else f", mean of {len(known)} seeds"
    return f"Fairness γ is {np.mean(known):.1f}{seeds} (100 would be perfectly in proportion)."


def _gain_sentence(c: Floats, a: Floats) -> str:
    gained, lost = int((a > c).sum()), int((a < c).sum())
    if len(c) == 1:
        return ""
    if gained == len(c):
        return f" All {len(c):,} clients got more than they reach alone."
    if not gained and not lost:
        return " Every client has exactly what it reaches alone."
    return f" {gained:,} of {count(len(c), 'client')} got more than they reach alone, {lost:,} got less."
