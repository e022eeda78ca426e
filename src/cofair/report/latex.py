"""The comparison as a LaTeX table, for \\input into a paper."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cofair.report.reported_runs import ReportedMethod, comparison
from cofair.results.columns import Column, shown
from cofair.storage.folder import explaining_write_errors, write_whole

_ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}", "·": r"$\cdot$", "…": r"\dots{}",
}  # fmt: skip
_ESCAPED |= {  # what settings are called by in papers
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\epsilon$", "η": r"$\eta$",
    "θ": r"$\theta$", "λ": r"$\lambda$", "μ": r"$\mu$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$",
}  # fmt: skip


def table(frame: pd.DataFrame, references: Collection[str] = ()) -> str:
    """Return one row per method of `Comparison.to_frame`: mean ± standard deviation over seeds, the best in bold.

    References, such as training alone, are not ranked.
    """
    rows = [{str(key): value for key, value in row.items()} for row in frame.to_dict(orient="records")]
    columns = [column for column in shown(frame) if column.latex is not None]
    ranked = [k for k, row in enumerate(rows) if row["method"] not in references]
    best = {
        column.name: {ranked[i] for i in column.best([rows[k][column.name] for k in ranked])} if len(ranked) > 1 else {}
        for column in columns
    }
    body = []
    for k, row in enumerate(rows):
        cells = [_cell(row, column, k in best[column.name]) for column in columns]
        body.append(" & ".join([escaped(str(row["method"])), *cells]) + r" \\")
    heading = " & ".join(["method", *(column.latex or "" for column in columns)]) + r" \\"
    seeds = sorted({int(row["seeds"]) for row in rows})
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}; put it into a table with \input{table.tex}",
            f"% accuracies by the rule '{frame['rule'].iloc[0]}', {'/'.join(map(str, seeds))} seeds; -- is undefined",
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            heading,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def write_tables(methods: Sequence[ReportedMethod], folder: Path) -> list[Path]:
    """Write table.tex to a folder, and summary.csv where a comparison has not written it already."""
    result = comparison(methods)
    with explaining_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "table.tex"]
    write_whole(written[0], table(result.to_frame(), [method.label for method in methods if method.reference]))
    if not (folder / "summary.csv").exists():
        written.append(folder / "summary.csv")
        write_whole(written[1], result.every_rule().to_csv(index=False))
    return written


def escaped(text: str) -> str:
    """Return a text that LaTeX prints as it is; line breaks and control characters become spaces."""
    plain = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text).strip()
    return "".join(_ESCAPED.get(sign, sign) for sign in plain)


def _cell(row: dict[str, Any], column: Column, best: bool) -> str:
    value, spread = row[column.name], row[f"{column.name}_std"]
    if pd.isna(value):
        return "--"
    text = rf"\mathbf{{{column.text(value)}}}" if best else column.text(value)
    return f"${text}$" if pd.isna(spread) else rf"${text} \pm {column.spread_text(spread)}$"
