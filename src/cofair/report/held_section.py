"""What clients hold in the end, where that was measured: beside what they were promised and what was delivered."""

import math

import numpy as np
import numpy.typing as npt

from cofair import metrics
from cofair.report.over_rounds import seed_of
from cofair.report.plots import BARS, Bars, Mark, Plot, Points
from cofair.report.promise_section import promises
from cofair.report.reported_runs import ReportedMethod, ReportedRun

Floats = npt.NDArray[np.float64]


def promised_delivered_held(method: ReportedMethod) -> Plot | None:
    """What each client was promised, was delivered and holds, by contribution: means over seeds."""
    runs = method.runs
    found = [held for run in runs if (held := run.outcome.held) is not None]
    if not found or len(found) < len(runs):
        return None
    c = np.mean([own.contributions for own in found], axis=0)
    order, names = np.argsort(c, kind="stable"), runs[0].outcome.names
    rows = {
        "promised": _mean([made.promised[-1] for run in runs if (made := promises(run)) is not None]),
        "delivered": _mean([100 * own.parts["delivered"] for own in found]),
        "held": _mean([100 * own.accuracies for own in found]),
    }
    marks: tuple[Mark, ...]
    if len(c) <= BARS:
        x = tuple(names[i] for i in order)
        marks = tuple(
            Bars(name, x, tuple(np.nan_to_num(row[order]).tolist())) for name, row in rows.items() if row is not None
        )
        x_label, y_label = "client, from the least contribution to the largest", f"{runs[0].metric}, %"
    else:
        assert rows["delivered"] is not None
        assert rows["held"] is not None
        marks = (Points("clients", tuple(rows["delivered"].tolist()), tuple(rows["held"].tolist()), names),)
        x_label, y_label = f"delivered: {runs[0].metric}, %", f"held: {runs[0].metric}, %"
    return Plot("held", "What each client holds", _caption(method, c), x_label, y_label, marks)


def held_sentence(run: ReportedRun, i: int) -> str | None:
    """Return the sentence on what client i holds, or None where that was not measured."""
    held = run.outcome.held
    if held is None:
        return None
    made = promises(run)
    promised = math.nan if made is None else float(made.promised[-1, i])
    against, what = (promised, "its promise") if not math.isnan(promised) else (
        100 * float(held.parts["delivered"][i]), "the model delivered to it"
    )  # fmt: skip
    own = 100 * float(held.accuracies[i])
    more = own - against
    how = f"{abs(more):.1f} points {'above' if more > 0 else 'below'}" if abs(more) >= 0.05 else "as much as"
    sources = "and its own data " if "tuned" in held.parts else ""
    measured = "" if sources else " Its own data is elsewhere, so nothing was tuned on it."
    return (
        f"With everything it was ever handed {sources}it can make a model of {own:.1f} % ({held.chosen[i]}), "
        f"{how} {what}{seed_of(run)}.{measured}"
    )


def _mean(rows: list[Floats]) -> Floats | None:
    return np.mean(rows, axis=0) if rows else None


def _caption(method: ReportedMethod, c: Floats) -> str:
    held = [own for run in method.runs if (own := run.outcome.held) is not None]
    known = [gamma for own in held if (gamma := own.fairness) is not None]
    fairness = f"Fairness γ of what clients hold is {np.mean(known):.1f}" if known else "Fairness γ is undefined here"
    weakest = 100 * float(np.mean([own.weakest for own in held]))
    given = 100 * float(np.mean([metrics.of_the_weakest(c, own.parts["delivered"]) for own in held]))
    return (
        f"{fairness}; the client that brings least was delivered {given:.1f} % and holds {weakest:.1f} %: the best "
        "that it makes of all that it was ever handed, chosen by data of its own."
    )
