"""The comparison table of the page: sortable, the best of each column in bold."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from cofair.report.findings import judged_by
from cofair.report.markup import Html, element, joined
from cofair.report.reported_runs import ReportedMethod, comparison
from cofair.report.words import count
from cofair.results.columns import Column, cell_text, shown


def of(methods: Sequence[ReportedMethod]) -> Html:
    """Return the table in a box of its own that scrolls where it is too wide, and what the numbers are."""
    frame = comparison(methods).to_frame()
    ranked = [k for k, method in enumerate(methods) if not method.reference] or list(range(len(methods)))
    columns = shown(frame)
    best = {column.name: _best(frame, column, ranked) for column in columns}
    sort: dict[str, str] = {}
    if len(methods) > 1:  # in the order of `findings.by_fairness`
        sort = {"method": "none", **{column.name: "none" for column in columns}, judged_by(frame): "descending"}
    header = [_heading("method", "", numeric=False, sort=sort.get("method"))]
    header += [_heading(column.heading, column.meaning, sort=sort.get(column.name)) for column in columns]
    rows = []
    for k, method in enumerate(methods):
        link = element("a", method.label, href="#method", data_choose=k) if len(methods) > 1 else method.label
        stopped = _stopped(method)
        cells = [element("th", link, element("sup", "†") if stopped else None, scope="row", data_value=method.label)]
        cells += [_cell(frame.iloc[k], column, k in best[column.name]) for column in columns]
        rows.append(element("tr", *cells))
    caption = element("caption", "Every method on the same federations", class_="visually-hidden")
    table = element(
        "table", caption, element("thead", element("tr", *header)), element("tbody", *rows), class_="comparison"
    )
    box = element("div", table, class_="wide", tabindex=0, role="region", aria_label="Comparison table")
    return joined([box, _notes(methods, frame, columns)])


def _heading(name: str, meaning: str, *, numeric: bool = True, sort: str | None = None) -> Html:
    kind = "number" if numeric else None
    if sort is None:
        return element("th", name, scope="col", title=meaning or None, class_=kind)
    button = element("button", name, type="button", title=meaning or None)
    return element("th", button, scope="col", aria_sort=sort, class_=kind)


def _cell(row: Any, column: Column, best: bool) -> Html:
    value = row[column.name]
    if pd.isna(value):
        return element("td", element("span", "–", title="undefined"), class_="number", data_value="")
    text = column.text(value)
    spread = cell_text(row, column, interval=True).removeprefix(text)
    number = element("strong", text) if best else text
    own = element("span", spread, class_="spread") if spread else None
    return element("td", number, own, class_="number", data_value=f"{value:.6g}")


def _best(frame: pd.DataFrame, column: Column, ranked: list[int]) -> set[int]:
    """Return which rows look best among those that are ranked."""
    if len(ranked) < 2:
        return set()
    values = frame[column.name].tolist()
    return {ranked[k] for k in column.best([values[k] for k in ranked])}


def _notes(methods: Sequence[ReportedMethod], frame: pd.DataFrame, columns: Sequence[Column]) -> Html:
    terms = [f"{column.term}: {column.meaning}" for column in columns if column.term is not None]
    notes = [f"Of the models delivered after the last round. {'; '.join(terms)}."]
    if frame["fairness_std"].notna().any():
        notes.append("± is the standard deviation over seeds.")
    if frame["fairness_low"].notna().any():
        notes.append("[low, high] is a 95 % bootstrap interval over clients.")
    if frame["fairness"].isna().any():
        notes.append("–: undefined, because all rewards or all contributions are equal, or there is only one client.")
    if len(methods) > 1 and any(method.reference for method in methods):
        notes.append(
            "standalone is the reference: every client trains alone, so it is fair by definition and not ranked."
        )
    notes += [f"† {method.label}: {_stopped(method)}." for method in methods if _stopped(method)]
    return element("p", " ".join(notes), class_="note")


def _stopped(method: ReportedMethod) -> str:
    """Say which runs of a method were interrupted; empty if all finished."""
    stopped = [run for run in method.runs if not run.finished]
    if not stopped:
        return ""
    which = "" if len(method.runs) == 1 else f"{count(len(stopped), 'run')} "
    rounds = ", ".join(f"{run.outcome.history[-1].round} of {run.rounds}" for run in stopped[:3])
    return f"{which}interrupted after round {rounds}{' …' if len(stopped) > 3 else ''}"
