"""Clients on the page: a statement for each, or a table to search where there are many."""

import math
from typing import Any

import numpy as np

from cofair.report.markup import Html, element, joined
from cofair.report.plots import Band, Lines, Mark, Plot
from cofair.report.promise_section import Floats, promises
from cofair.report.statement import ClientStatements

CARDS = 50  # more clients than this are a table


def statement_cards(statements: ClientStatements, group: int, heading: str) -> Html:
    """Return the statements of all clients, or a table to search by name."""
    title = element(heading, "A statement for each client")
    if len(statements) > CARDS:
        return joined([title, _search(statements, group)])
    below = f"h{int(heading[1]) + 1}"
    cards = []
    for i, name in enumerate(statements.names):
        sentences = [element("p", sentence) for sentence in statements.sentences(i)]
        verdict = _verdict(statements, i)
        top = element("div", element(below, f"Client {name}"), verdict, class_="card-head")
        cards.append(element("article", top, *sentences, class_="card"))
    return joined([title, element("div", *cards, class_="cards")])


def _verdict(statements: ClientStatements, i: int) -> Html | None:
    if not statements.comparable or statements.method.reference:
        return None
    if statements.inside[i]:
        return element("span", "inside its bounds", class_="badge good")
    where = "above" if statements.got[i] > max(statements.lower[i], statements.upper[i]) else "below"
    return element("span", f"{where} its bounds", class_="badge bad")


def _search(statements: ClientStatements, group: int) -> Html:
    identifier = f"search-{group}"
    label = element("label", f"Find one of {len(statements):,} clients", for_=identifier)
    field = element("input", id=identifier, type="search", autocomplete="off", data_search=group)
    columns = ["client", "samples", "brought", "rank", "got"]
    columns += ["gain", "entitled to", "inside"] if statements.comparable else []
    columns.append("download")
    numeric = ("client", "entitled to", "inside")
    header = [element("th", name, scope="col", class_=None if name in numeric else "number") for name in columns]
    body = element("tbody", data_rows=group)
    box = element(
        "div", element("table", element("thead", element("tr", *header)), body), class_="wide", tabindex=0,
        role="region", aria_label="Clients",
    )  # fmt: skip
    hint = element(
        "p", element("span", data_count=group, aria_live="polite"), " A client's own page with its statement: ",
        element("code", "cofair report DIR --client NAME"), class_="note",
    )  # fmt: skip
    return joined([element("p", label, field, class_="choose"), box, hint])


def numbers(statements: ClientStatements) -> dict[str, Any]:
    """Return the table of many clients for the page's script, column by column, in the order of contributions."""
    order = np.argsort(-statements.brought, kind="stable")
    columns: list[list[str]] = [
        [statements.names[i] for i in order],
        [f"{statements.samples[i]:.0f}" for i in order],
        [statements.brought_text(i) for i in order],
        [str(statements.ranks[i]) for i in order],
        [f"{100 * statements.got[i]:.1f} %" for i in order],
    ]
    if statements.comparable:
        columns.append([f"{100 * (statements.got[i] - statements.brought[i]):+.1f}".replace("-", "−") for i in order])
        columns.append([statements.entitlement(i) for i in order])
        columns.append(["yes" if statements.inside[i] else "no" for i in order])
    columns.append([f"{100 * statements.download[i]:.0f} %" for i in order])
    text = [0, 6, 7] if statements.comparable else [0]
    return {"columns": columns, "text": text}


def client_plots(statements: ClientStatements, i: int) -> list[Plot]:
    """Return a client's own accuracy and reputation over the rounds, with its bounds."""
    history = [record for record in statements.run.outcome.history if not math.isnan(record.accuracies[i])]
    metric = statements.run.metric
    if len(history) < 2:
        return []
    rounds = tuple(float(record.round) for record in history)
    marks: list[Mark] = []
    caption = f"The {metric} of the model that it has after each tested round"
    if statements.comparable and statements.upper[i] > statements.lower[i]:
        low, high = 100 * statements.lower[i], 100 * statements.upper[i]
        marks.append(Band("what it is entitled to", rounds, (low,) * len(rounds), (high,) * len(rounds)))
        caption += "; the band is what it is entitled to in the end"
    own = tuple(100 * record.accuracies[i] for record in history)
    made = promises(statements.run)
    marks.append(Lines("its reward", rounds, own, None if made is None else 1.0))
    if made is not None:
        when = tuple(float(t) for t in made.rounds)
        marks.append(Lines("promised", when, _shown(made.promised[:, i]), 0.0))
        marks.append(Lines("on the validation set", when, _shown(made.validated[:, i]), 0.5))
        caption += "; what it was promised, and what was found on the validation set when it was chosen"
    title = f"{metric[0].upper()}{metric[1:]} of its reward"
    seed = f" (seed {statements.run.outcome.seed})"
    plots = [Plot("client_accuracy", title, f"{caption}{seed}.", "round", f"{metric}, %", tuple(marks))]
    if made is None and history[-1].reputation is not None:  # which would repeat the promise
        line = Lines(
            "its reputation", rounds, tuple(None if r.reputation is None else r.reputation[i] for r in history)
        )
        caption = f"What the server believes of it after each tested round{seed}."
        plots.append(Plot("client_reputation", "Its reputation", caption, "round", "reputation", (line,)))
    return plots


def _shown(values: Floats) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else float(value) for value in values)
