"""The report as one HTML file: it needs no network, opens from disk and can be mailed."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from cofair.errors import UsageError
from cofair.report import comparison_table, figures, findings, ledger_section, provenance
from cofair.report.clients import CARDS, client_plots, numbers, statement_cards
from cofair.report.markup import Html, data, element, joined, text_table
from cofair.report.over_rounds import seed_of
from cofair.report.plots import Plot
from cofair.report.promise_section import promises, round_by_round
from cofair.report.reported_runs import ReportedMethod, reported_method
from cofair.report.statement import ClientStatements
from cofair.report.words import count
from cofair.results.result import Result
from cofair.storage.folder import explaining_write_errors, write_whole

MISSING = "The report needs plotly: pip install 'cofair[report]'."


def write(methods: Sequence[ReportedMethod], path: Path, failures: Mapping[str, str] | None = None) -> Path:
    """Write the report of all methods, with the runs that failed and why, and return its path."""
    return _write(document(methods, failures), path)


def write_report(result: Result, path: str | Path) -> Path:
    """Write the report of one run in memory and return its path."""
    return write([reported_method(result)], Path(path))


def write_statement(method: ReportedMethod, client: str, path: Path) -> Path:
    """Write one client's statement as a page of its own and return its path."""
    return _write(client_document(method, client), path)


def statement_file(client: str) -> str:
    """Return a file name for a client, whatever it is called; different clients have different files."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", client).strip("_")[:60]
    if safe != client or not safe:
        safe = f"{safe}-{hashlib.sha256(client.encode()).hexdigest()[:8]}".lstrip("-")
    return f"statement-{safe}.html"


def document(methods: Sequence[ReportedMethod], failures: Mapping[str, str] | None = None) -> str:
    """Return the report as HTML; of runs that failed it says why."""
    asked, methods = methods, findings.by_fairness(methods)
    first = findings.fairest(methods)
    plots: dict[str, list[dict[str, Any]]] = {}
    body: list[Html] = [
        element(
            "header", element("p", findings.facts(methods), class_="facts"), element("h1", findings.title(methods)),
            element("p", " ".join(findings.findings(methods)), class_="lead"), ledger_section.warning(asked),
        ),
        _section("Comparison" if len(methods) > 1 else "In numbers", comparison_table.of(methods), id="comparison"),
    ]  # fmt: skip
    if failures:
        failed = [[name, reason] for name, reason in failures.items()]
        body.append(_section("Runs that failed", text_table(["run", "why"], failed, "failed runs"), id="failed"))
    if compared := figures.of_comparison(methods):
        body.append(_section(compared[0].title, _figures("all", compared, plots, heading=None), id="fairness-accuracy"))
    body.append(
        _section("One method at a time" if len(methods) > 1 else methods[0].label, _methods(methods, first, plots),
                 id="method")
    )  # fmt: skip
    body.append(_section("Configuration", provenance.configuration(asked), id="configuration"))
    if (kept := ledger_section.section(asked)) is not None:
        body.append(_section("Ledger", kept, id="ledger"))
    body.append(_section("Run it again", provenance.again(asked), id="again"))
    rows = {
        str(k): numbers(ClientStatements(method)) for k, method in enumerate(methods) if len(_names(method)) > CARDS
    }
    return _whole(findings.title(methods), joined(body), {"plots": plots, "clients": rows})


def client_document(method: ReportedMethod, client: str) -> str:
    """Return one client's statement as HTML."""
    statements = ClientStatements(method)
    i = statements.index(client)
    plots: dict[str, list[dict[str, Any]]] = {}
    title = f"Client {client}: what it brought and got"
    stopped = next((run for run in method.runs if not run.finished), None)
    sentences = [element("li", sentence) for sentence in statements.sentences(i)]
    if stopped is not None:
        last = stopped.outcome.history[-1].round
        sentences.append(element("li", f"The run was interrupted after round {last}: this is how far it got."))
    header = element(
        "header", element("p", f"{method.label} · {findings.facts([method])}", class_="facts"), element("h1", title),
        ledger_section.warning([method]),
    )  # fmt: skip
    body = [header, _section("Statement", element("ul", *sentences, class_="statement"), id="statement")]
    if own := client_plots(statements, i):
        body.append(_section("Over the rounds", _figures("all", own, plots, heading="h3"), id="rounds"))
    if (made := promises(statements.run)) is not None:
        header_row = ["round", "promised", "on the validation set", "on the test set", "tested less promised"]
        rows = text_table(header_row, round_by_round(made, i), "tested rounds")
        body.append(_section(f"Promises{seed_of(statements.run)}", rows, id="promises"))
    if (kept := ledger_section.statement(method, client)) is not None:
        body.append(_section("Ledger", kept, id="ledger"))
    body.append(_section("Run it again", provenance.again([method]), id="again"))
    return _whole(title, joined(body), {"plots": plots, "clients": {}})


def _methods(methods: Sequence[ReportedMethod], first: int, plots: dict[str, list[dict[str, Any]]]) -> Html:
    parts = []
    if len(methods) > 1:
        options = [element("option", method.label, value=k, selected=k == first) for k, method in enumerate(methods)]
        label = element("label", "Method", for_="choose")
        select = element("select", *options, id="choose", autocomplete="off")
        parts.append(element("p", label, select, class_="choose"))
    several = len(methods) > 1
    for k, method in enumerate(methods):
        heading = "h4" if several else "h3"
        content = [
            _about(method, several), _figures(str(k), figures.of_method(method), plots, heading=heading),
            statement_cards(ClientStatements(method), k, heading=heading),
        ]  # fmt: skip
        parts.append(element("div", *content, class_="method", data_method=k, hidden=k != first))
    return joined(parts)


def _about(method: ReportedMethod, several: bool) -> Html:
    from cofair.methods import METHODS

    known = METHODS.get(method.name)
    lines: list[object] = [element("h3", method.label)] if several else []
    if known is not None:
        first_line = (known.__doc__ or "").strip().splitlines()[0]
        lines.append(element("p", first_line, " ", element("span", f"({known.paper})", class_="paper")))
    if notes := method.runs[0].facts.get("notes"):
        said_first = f"Said before the first round (seed {method.runs[0].outcome.seed}): {' '.join(map(str, notes))}"
        lines.append(element("p", said_first, class_="note"))
    if len(method.runs) > 1:
        over = f"Means over {count(len(method.runs), 'seed')}; plots over rounds are of seed "
        lines.append(element("p", f"{over}{method.runs[0].outcome.seed}.", class_="note"))
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


def _names(method: ReportedMethod) -> tuple[str, ...]:
    return method.runs[0].outcome.names


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
