"""The report as one HTML file: it needs no network, opens from disk and can be sent round."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from cofair.errors import UsageError
from cofair.report import comparison_table, figures, findings, ledger_section, provenance
from cofair.report.clients import CARDS, client_plots, numbers, statements
from cofair.report.entries import Entry
from cofair.report.markup import Html, data, element, joined, text_table
from cofair.report.over_rounds import seed_of
from cofair.report.plots import Plot
from cofair.report.promise_section import promises, round_by_round
from cofair.report.statement import Standing
from cofair.report.words import count
from cofair.storage.folder import explaining_write_errors, write_whole

MISSING = "The report needs plotly: pip install 'cofair[report]'."


def write(entries: Sequence[Entry], path: Path) -> Path:
    """Write the report of all entries and return its path."""
    return _write(document(entries), path)


def write_statement(entry: Entry, client: str, path: Path) -> Path:
    """Write one client's statement as a page of its own and return its path."""
    return _write(client_document(entry, client), path)


def statement_file(client: str) -> str:
    """Return a file name for a client, whatever it is called; different clients have different files."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", client).strip("_")[:60]
    if safe != client or not safe:
        safe = f"{safe}-{hashlib.sha256(client.encode()).hexdigest()[:8]}".lstrip("-")
    return f"statement-{safe}.html"


def document(entries: Sequence[Entry]) -> str:
    """Return the report as HTML."""
    asked, entries = entries, findings.by_fairness(entries)
    first = findings.fairest(entries)
    plots: dict[str, list[dict[str, Any]]] = {}
    body: list[Html] = [
        element(
            "header", element("p", findings.facts(entries), class_="facts"), element("h1", findings.title(entries)),
            element("p", " ".join(findings.findings(entries)), class_="lead"), ledger_section.warning(asked),
        ),
        _section("Comparison" if len(entries) > 1 else "In numbers", comparison_table.of(entries), id="comparison"),
    ]  # fmt: skip
    if compared := figures.of_comparison(entries):
        body.append(_section(compared[0].title, _figures("all", compared, plots, heading=None), id="fairness-accuracy"))
    body.append(
        _section("One method at a time" if len(entries) > 1 else entries[0].label, _methods(entries, first, plots),
                 id="method")
    )  # fmt: skip
    body.append(_section("Configuration", provenance.configuration(asked), id="configuration"))
    if (kept := ledger_section.section(asked)) is not None:
        body.append(_section("Ledger", kept, id="ledger"))
    body.append(_section("Run it again", provenance.again(asked), id="again"))
    rows = {str(k): numbers(Standing(entry)) for k, entry in enumerate(entries) if len(_names(entry)) > CARDS}
    return _whole(findings.title(entries), joined(body), {"plots": plots, "clients": rows})


def client_document(entry: Entry, client: str) -> str:
    """Return one client's statement as HTML."""
    standing = Standing(entry)
    i = standing.index(client)
    plots: dict[str, list[dict[str, Any]]] = {}
    title = f"Client {client}: what it brought and got"
    stopped = next((run for run in entry.runs if not run.finished), None)
    sentences = [element("li", sentence) for sentence in standing.sentences(i)]
    if stopped is not None:
        last = stopped.outcome.history[-1].round
        sentences.append(element("li", f"The run was interrupted after round {last}: this is where it stood."))
    header = element(
        "header", element("p", f"{entry.label} · {findings.facts([entry])}", class_="facts"), element("h1", title),
        ledger_section.warning([entry]),
    )  # fmt: skip
    body = [header, _section("Statement", element("ul", *sentences, class_="statement"), id="statement")]
    if own := client_plots(standing, i):
        body.append(_section("Over the rounds", _figures("all", own, plots, heading="h3"), id="rounds"))
    if (made := promises(standing.run)) is not None:
        header_row = ["round", "promised", "on the validation set", "on the test set", "tested less promised"]
        rows = text_table(header_row, round_by_round(made, i), "tested rounds")
        body.append(_section(f"Promises{seed_of(standing.run)}", rows, id="promises"))
    if (kept := ledger_section.statement(entry, client)) is not None:
        body.append(_section("Ledger", kept, id="ledger"))
    body.append(_section("Run it again", provenance.again([entry]), id="again"))
    return _whole(title, joined(body), {"plots": plots, "clients": {}})


def _methods(entries: Sequence[Entry], first: int, plots: dict[str, list[dict[str, Any]]]) -> Html:
    parts = []
    if len(entries) > 1:
        options = [element("option", entry.label, value=k, selected=k == first) for k, entry in enumerate(entries)]
        label = element("label", "Method", for_="choose")
        select = element("select", *options, id="choose", autocomplete="off")
        parts.append(element("p", label, select, class_="choose"))
    several = len(entries) > 1
    for k, entry in enumerate(entries):
        content = [
            _about(entry, several), _figures(str(k), figures.of_entry(entry), plots, heading="h4" if several else "h3"),
            statements(Standing(entry), k, heading="h4" if several else "h3"),
        ]  # fmt: skip
        parts.append(element("div", *content, class_="method", data_method=k, hidden=k != first))
    return joined(parts)


def _about(entry: Entry, several: bool) -> Html:
    from cofair.methods import METHODS

    method = METHODS.get(entry.method)
    lines: list[object] = [element("h3", entry.label)] if several else []
    if method is not None:
        first_line = (method.__doc__ or "").strip().splitlines()[0]
        lines.append(element("p", first_line, " ", element("span", f"({method.paper})", class_="paper")))
    if notes := entry.runs[0].facts.get("notes"):
        told_first = f"Told before the first round (seed {entry.runs[0].outcome.seed}): {' '.join(map(str, notes))}"
        lines.append(element("p", told_first, class_="note"))
    if len(entry.runs) > 1:
        over = f"Means over {count(len(entry.runs), 'seed')}; what goes over rounds is from seed "
        lines.append(element("p", f"{over}{entry.runs[0].outcome.seed}.", class_="note"))
    return joined(lines)


def _figures(
    group: str, own: Sequence[Plot], plots: dict[str, list[dict[str, Any]]], heading: str | None
) -> Html:  # fmt: skip
    interactive = _interactive()
    plots[group] = [interactive.as_json(plot) for plot in own]
    drawn = []
    for k, plot in enumerate(own):
        empty = element(
            "div", class_="plot", role="img", aria_label=f"{plot.title}. {plot.caption}", data_plot=f"{group}/{k}",
            style=f"min-height:{plots[group][k]['layout']['height']}px",
        )  # fmt: skip
        name = element(heading, plot.title) if heading else None
        drawn.append(element("figure", name, empty, element("figcaption", plot.caption), data_key=plot.key))
    return element("div", *drawn, class_="figures")


def _section(title: str, *content: Html, id: str) -> Html:
    return element("section", element("h2", title), *content, id=id)


def _names(entry: Entry) -> tuple[str, ...]:
    return entry.runs[0].outcome.names


def _whole(title: str, body: Html, values: dict[str, Any]) -> str:
    values = {**values, "dark": _interactive().dark_colours()}
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),  # whatever happens: no network
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(_asset("page.css"))),
    )
    noscript = element("noscript", element("p", "The plots of this page are drawn by JavaScript.", class_="note"))
    footer = element("footer", element("p", "Made by cofair."))
    scripts = [element("script", Html(_plotly())), element("script", Html(_asset("page.js")))]
    page = element("body", element("main", noscript, body), footer, data(values, "values"), *scripts)
    return f"<!DOCTYPE html>\n{element('html', head, page, lang='en')}\n"


def _write(text: str, path: Path) -> Path:
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file for the report.")
    with explaining_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path


def _interactive() -> Any:
    try:
        from cofair.report import interactive
    except ImportError:
        raise UsageError(MISSING) from None
    return interactive


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


@cache
def _asset(name: str) -> str:
    return resources.files("cofair.report").joinpath(name).read_text(encoding="utf-8")
