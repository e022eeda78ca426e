"""The comparison table of the page: sortable, the best of each column in bold."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from cofair.report.markup import Html, element, joined
from cofair.report.reported_runs import ReportedMethod, comparison
from cofair.report.words import count

# name in the frame, heading, what it means, factor, digits, unit, whether more is better
_COLUMNS: tuple[tuple[str, str, str, float, int, str, bool], ...] = (
    ("fairness", "fairness γ", "100 × correlation of what clients brought and got", 1, 1, "", True),
    ("max", "max %", "the best client's reward", 100, 1, "", True),
    ("mean", "mean %", "the mean reward", 100, 1, "", True),
    ("min", "min %", "the worst client's reward", 100, 1, "", True),
    ("rate", "rate", "share of clients that got what they are entitled to (α-BCF)", 1, 2, "", True),
    ("download", "download", "share of a whole model that a client receives a round", 100, 0, " %", False),
    ("seconds", "seconds", "time of all rounds of a run", 1, 1, "", False),
)


_SORTED = {"fairness": "descending"}  # the order in which the page has the methods


def of(methods: Sequence[ReportedMethod]) -> Html:
    """Return the table in a box of its own that scrolls where it is too wide, and what the numbers are."""
    frame = comparison(methods).to_frame()
    ranked = [k for k, method in enumerate(methods) if not method.reference] or list(range(len(methods)))
    best = {name: _best(frame, name, factor, digits, more, ranked) for name, _, _, factor, digits, _, more in _COLUMNS}
    sort: dict[str, str] = {}
    if len(methods) > 1:
        sort = {"method": "none", **{column[0]: "none" for column in _COLUMNS}, **_SORTED}
    header = [_heading("method", "", numeric=False, sort=sort.get("method"))]
    header += [_heading(heading, meaning, sort=sort.get(name)) for name, heading, meaning, *_ in _COLUMNS]
    rows = []
    for k, method in enumerate(methods):
        link = element("a", method.label, href="#method", data_choose=k) if len(methods) > 1 else method.label
        stopped = _stopped(method)
        cells = [element("th", link, element("sup", "†") if stopped else None, scope="row", data_value=method.label)]
        cells += [_cell(frame.iloc[k], column, k in best[column[0]]) for column in _COLUMNS]
        rows.append(element("tr", *cells))
    caption = element("caption", "Every method on the same federations", class_="visually-hidden")
    table = element(
        "table", caption, element("thead", element("tr", *header)), element("tbody", *rows), class_="comparison"
    )
    box = element("div", table, class_="wide", tabindex=0, role="region", aria_label="Comparison table")
    return joined([box, _notes(methods, frame)])


def _heading(name: str, meaning: str, *, numeric: bool = True, sort: str | None = None) -> Html:
    kind = "number" if numeric else None
    if sort is None:
        return element("th", name, scope="col", title=meaning or None, class_=kind)
    button = element("button", name, type="button", title=meaning or None)
    return element("th", button, scope="col", aria_sort=sort, class_=kind)


def _cell(row: Any, column: tuple[str, str, str, float, int, str, bool], best: bool) -> Html:
    name, _, _, factor, digits, unit, _ = column
    value = row[name]
    if pd.isna(value):
        return element("td", element("span", "–", title="undefined"), class_="number", data_value="")
    text = f"{factor * value:.{digits}f}{unit}"
    deviation = row.get(f"{name}_std")
    spread = None
    if deviation is not None and not pd.isna(deviation):
        spread = element("span", f" ± {factor * deviation:.{digits}f}", class_="spread")
    elif name == "fairness" and not pd.isna(row["fairness_low"]):
        spread = element("span", f" [{row['fairness_low']:.0f}, {row['fairness_high']:.0f}]", class_="spread")
    shown = element("strong", text) if best else text
    return element("td", shown, spread, class_="number", data_value=f"{value:.6g}")


def _best(frame: pd.DataFrame, name: str, factor: float, digits: int, more: bool, ranked: list[int]) -> set[int]:
    """Return which rows look best: what reads the same is equally good."""
    values = (factor * frame[name].astype(float)).round(digits).iloc[ranked].dropna()
    if len(ranked) < 2 or values.empty:
        return set()
    return set(values[values == (values.max() if more else values.min())].index)


def _notes(methods: Sequence[ReportedMethod], frame: pd.DataFrame) -> Html:
    notes = [
        "Means of the final ten rounds. γ = 100 × Pearson correlation of contributions and rewards; rate: share of "
        "clients that got what they are entitled to (α-BCF, α = 0.5); download: share of a whole model that a client "
        "receives in a round."
    ]
    if frame["fairness_std"].notna().any():
        notes.append("± is the standard deviation over seeds.")
    if frame["fairness_low"].notna().any():
        notes.append("[low, high] is a 95 % bootstrap interval over clients.")
    if frame["fairness"].isna().any():
        notes.append("–: undefined, because all rewards or all contributions are equal, or there is only one client.")
    if len(methods) > 1 and any(method.reference for method in methods):
        notes.append("standalone is the reference: everybody trains alone, so it is fair by definition and not ranked.")
    notes += [f"† {method.label}: {_stopped(method)}." for method in methods if _stopped(method)]
    return element("p", " ".join(notes), class_="note")


def _stopped(method: ReportedMethod) -> str:
    """Say which runs of a method were interrupted; empty where all came to their end."""
    stopped = [run for run in method.runs if not run.finished]
    if not stopped:
        return ""
    which = "" if len(method.runs) == 1 else f"{count(len(stopped), 'run')} "
    rounds = ", ".join(f"{run.outcome.history[-1].round} of {run.rounds}" for run in stopped[:3])
    return f"{which}interrupted after round {rounds}{' …' if len(stopped) > 3 else ''}"
