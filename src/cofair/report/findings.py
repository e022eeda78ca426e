"""The page's title and its first sentences: what was found, in words."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from cofair.report.reported_runs import ReportedMethod, comparison
from cofair.report.statement import ClientStatements
from cofair.report.words import count


def title(methods: Sequence[ReportedMethod]) -> str:
    """Return the page's title in plain words."""
    run = methods[0].runs[0]
    data = {str(own.setting("federation", "data") or "") for method in methods for own in method.runs}
    on = f" on {next(iter(data))}" if len(data) == 1 and "" not in data else ""
    sizes = {len(own.outcome.names) for method in methods for own in method.runs}
    clients = count(len(run.outcome.names), "client") if len(sizes) == 1 else "the clients"
    if len(methods) == 1:
        return f"What {clients} brought and got with {methods[0].label}{on}"
    return f"What {clients} brought and got: {len(methods)} methods{on}"


def facts(methods: Sequence[ReportedMethod]) -> str:
    """Return what all runs share, in one line."""
    runs = [run for method in methods for run in method.runs]
    parts = []
    for table, key, form in (
        ("federation", "data", "data {}"), ("federation", "scene", "scene {}"), ("training", "rounds", "{} rounds"),
    ):  # fmt: skip
        values = {run.setting(table, key) for run in runs}
        if len(values) == 1 and (value := values.pop()) is not None:
            parts.append(form.format(value))
    sizes = {len(run.outcome.names) for run in runs}
    if len(sizes) == 1:
        parts.insert(-1 if parts else 0, count(sizes.pop(), "client"))
    seeds = sorted({run.outcome.seed for run in runs})
    parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds")
    return " · ".join(parts)


def fairest(methods: Sequence[ReportedMethod]) -> int:
    """Return which method is shown first: the fairest one, training alone aside."""
    frame = _ranked(methods)
    return _argmax(frame, judged_by(frame) if frame["fairness"].notna().any() else "max")


def by_fairness(methods: Sequence[ReportedMethod]) -> list[ReportedMethod]:
    """Return methods in the order of the table: the fairest first, those without a defined fairness last."""
    frame = comparison(methods).to_frame()
    fairness = frame[judged_by(frame)].astype(float).fillna(-1000.0).tolist()
    return [methods[k] for k in sorted(range(len(methods)), key=lambda k: -fairness[k])]


def findings(methods: Sequence[ReportedMethod]) -> list[str]:
    """Return the findings in one or two sentences."""
    if len(methods) == 1:
        return _of_one(methods[0])
    frame, metric = _ranked(methods), methods[0].runs[0].metric
    best = frame.loc[_argmax(frame, "max")]
    if not frame["fairness"].notna().any():
        return [
            f"Fairness γ is undefined for every method. The best client gets most with {best['method']}: "
            f"{_percent(best['max'])} {metric}."
        ]
    by = judged_by(frame)
    fair = frame.loc[_argmax(frame, by)]
    follows = {"fairness": "rewards follow what clients brought with γ"}
    what = follows.get(by, "what clients hold in the end follows what they brought with held γ")
    found = [
        f"Fairest is {fair['method']}: {what} {fair[by]:.1f} of 100, "
        f"and its best client reaches {_percent(fair['max'])} {metric}{_than_alone(methods, fair)}."
    ]
    if best["method"] == fair["method"]:
        found.append("No other method gives the best client more.")
    else:
        gamma: Any = best["fairness"]
        worth = "is undefined, because all rewards are equal" if pd.isna(gamma) else f"is {gamma:.1f}"
        found.append(f"{best['method']} gives the best client most, {_percent(best['max'])}; its γ {worth}.")
    return found


def _of_one(method: ReportedMethod) -> list[str]:
    statements, gamma = ClientStatements(method), comparison([method]).to_frame().iloc[0]["fairness"]
    metric = statements.run.metric
    if len(statements) == 1:
        return statements.sentences(0)[:2]
    fairness = (
        "Fairness γ is undefined: all contributions or all rewards are the same."
        if pd.isna(gamma)
        else f"Rewards follow what clients brought with fairness γ {gamma:.1f} (100 is perfectly in proportion)."
    )
    low, high = 100 * statements.got.min(), 100 * statements.got.max()
    span = f"Rewards have {low:.1f} to {high:.1f} % {metric}"
    if statements.comparable:
        inside = int(statements.inside.sum())
        span += f"; {inside:,} of {count(len(statements), 'client')} got what they are entitled to"
    return [fairness, span + "."]


def _than_alone(methods: Sequence[ReportedMethod], row: Any) -> str:
    """Say by how much the best reward beats what the best client reaches alone, where both are on one scale."""
    method = next(method for method in methods if method.label == row["method"])
    if not method.runs[0].contributions_are_accuracies:
        return ""
    gain = 100 * (row["max"] - ClientStatements(method).brought.max())
    if abs(gain) < 0.05:
        return ", as much as the best reaches alone"
    return f", {abs(gain):.1f} points {'more' if gain >= 0 else 'less'} than the best reaches alone"


def _ranked(methods: Sequence[ReportedMethod]) -> pd.DataFrame:
    """Return the table without training alone, which is fair by definition and wins nothing."""
    frame = comparison(methods).to_frame()
    others = [k for k, method in enumerate(methods) if not method.reference]
    return frame.iloc[others] if others else frame


def judged_by(frame: pd.DataFrame) -> str:
    """Return the column that says which method is fairest: what clients hold, where all methods have that."""
    held = "held_fairness"
    return held if held in frame and bool(frame[held].notna().any()) else "fairness"


def _argmax(frame: pd.DataFrame, column: str) -> int:
    return int(str(frame[column].astype(float).idxmax()))


def _percent(share: Any) -> str:
    return f"{100 * float(share):.1f} %"
