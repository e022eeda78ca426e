"""The comparison as a LaTeX table, for \\input into a paper."""

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cofair.report.reported_runs import ReportedMethod, comparison
from cofair.storage.folder import explaining_write_errors, write_whole

_COLUMNS = {  # quantity: heading, factor, digits
    "fairness": (r"$\gamma$", 1, 1), "max": (r"max [\%]", 100, 1), "mean": (r"mean [\%]", 100, 1),
    "min": (r"min [\%]", 100, 1), "rate": ("rate", 1, 2),
}  # fmt: skip
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
    """Return one row a method of `Comparison.to_frame`: mean ± standard deviation over seeds, the best in bold.

    References, such as training alone, are not ranked.
    """
    rows = [{str(key): value for key, value in row.items()} for row in frame.to_dict(orient="records")]
    ranked = [row for row in rows if row["method"] not in references]
    best = {name: max(_shown(row, name) for row in ranked) if len(ranked) > 1 else None for name in _COLUMNS}
    body = []
    for row in rows:
        mark = best if row["method"] not in references else dict.fromkeys(_COLUMNS)
        cells = [_cell(row, name, mark[name]) for name in _COLUMNS]
        body.append(" & ".join([escaped(str(row["method"])), *cells]) + r" \\")
    heading = " & ".join(["method", *(heading for heading, _, _ in _COLUMNS.values())]) + r" \\"
    seeds = sorted({int(row["seeds"]) for row in rows})
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}; put it into a table with \input{table.tex}",
            f"% accuracies by the rule '{frame['rule'].iloc[0]}', {'/'.join(map(str, seeds))} seeds; -- is undefined",
            rf"\begin{{tabular}}{{l{'r' * len(_COLUMNS)}}}",
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


def _shown(row: dict[str, Any], name: str) -> float:
    """Return a value as it is printed: what looks equal is equally good."""
    _, factor, digits = _COLUMNS[name]
    return -math.inf if pd.isna(row[name]) else round(factor * float(row[name]), digits)


def _cell(row: dict[str, Any], name: str, best: float | None) -> str:
    _, factor, digits = _COLUMNS[name]
    value, spread = _shown(row, name), row[f"{name}_std"]
    if value == -math.inf:
        return "--"
    text = f"{value:.{digits}f}"
    text = rf"\mathbf{{{text}}}" if value == best else text
    return f"${text}$" if pd.isna(spread) else rf"${text} \pm {factor * float(spread):.{digits}f}$"
