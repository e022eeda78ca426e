"""How results display in a notebook: small tables, every name escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from cofair.results.columns import cell_text, shown

if TYPE_CHECKING:
    from cofair.results.comparison import Comparison
    from cofair.results.result import Outcome

SHOWN_CLIENTS = 20  # more are summarised


def outcome(result: "Outcome") -> str:
    """Return what each client brought and got; of many clients, how both are spread."""
    cell, count = result.cell(), len(result.names)
    fairness = "undefined" if cell.fairness is None else f"{cell.fairness:.1f}"
    title = f"<b>{escape(result.method)}</b>, seed {result.seed}: fairness γ {fairness}"
    facts = [
        f"best client {100 * cell.max:.1f} %, mean {100 * cell.mean:.1f} %, worst {100 * cell.min:.1f} %",
        f"{100 * cell.rate:.0f} % of clients inside their bounds",
        f"{100 * result.download:.0f} % of a model downloaded per round",
        f"{result.history[-1].round} rounds, {result.seconds:.1f} s",
    ]
    if count <= SHOWN_CLIENTS:
        clients = zip(result.names, result.sizes, result.contributions, result.accuracies, strict=True)
        rows = [[name, f"{size:,}", f"{brought:.3f}", f"{got:.3f}"] for name, size, brought, got in clients]
        return _html(title, facts, ["client", "samples", "brought", "got"], rows)
    columns = [np.asarray(values) for values in (result.sizes, result.contributions, result.accuracies)]
    rows = []
    for name, share in (("least", 0), ("lower quarter", 25), ("median", 50), ("upper quarter", 75), ("most", 100)):
        samples, brought, got = (np.percentile(values, share) for values in columns)
        rows.append([name, f"{samples:,.0f}", f"{brought:.3f}", f"{got:.3f}"])
    return _html(title, facts, [f"{count:,} clients", "samples", "brought", "got"], rows)


def comparison(result: "Comparison") -> str:
    """Return one row per method."""
    frame = result.to_frame()
    columns = shown(frame)
    records = [{str(key): value for key, value in row.items()} for row in frame.to_dict(orient="records")]
    rows = [[str(row["method"]), *(cell_text(row, column) for column in columns)] for row in records]
    seeds = int(frame["seeds"].max())
    title = f"<b>{len(rows)} methods</b>, {seeds} seed{'' if seeds == 1 else 's, mean ± standard deviation'}"
    return _html(title, [], ["method", *(column.heading for column in columns)], rows)


def _html(title: str, facts: Iterable[str], header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that looks like pandas' own in notebooks: names to the left, numbers to the right."""

    def line(tag: str, texts: Sequence[str]) -> str:
        sides = ["left", *["right"] * (len(texts) - 1)]
        cells = zip(sides, texts, strict=True)
        return "".join(
            f'<{tag} style="text-align:{side};padding:.1em .6em">{escape(text)}</{tag}>' for side, text in cells
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    below = escape("; ".join(facts))
    return (
        f'<div><p style="margin:0 0 .3em">{title}{f"<br><small>{below}</small>" if below else ""}</p>'
        f'<table class="dataframe"><thead><tr>{line("th", header)}</tr></thead><tbody>{body}</tbody></table></div>'
    )
