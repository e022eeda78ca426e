"""Figures for papers: the report's plots as files, with the captions in their metadata instead of titles."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cofair.errors import UsageError, nearest
from cofair.report import drawing, figures
from cofair.report.plots import Plot
from cofair.report.reported_runs import ReportedMethod
from cofair.storage.folder import explaining_write_errors

KINDS = ("pdf", "png", "svg")


def write_figures(methods: Sequence[ReportedMethod], folder: Path, kind: str) -> list[Path]:
    """Write every plot of a report to `folder`/figures and return the files."""
    if kind not in KINDS:
        raise UsageError(f"Unknown kind of figure {kind!r}: {nearest(kind, KINDS)}")
    named = [("", plot) for plot in figures.of_comparison(methods)]
    for method, name in zip(methods, safe_names([method.label for method in methods]), strict=True):
        named += [(f"{name}_", plot) for plot in figures.of_method(method)]
    written = []
    for prefix, plot in named:
        if not any(len(mark.x) for mark in plot.marks):
            continue
        path = folder / "figures" / f"{prefix}{plot.key}.{kind}"
        with drawing.style(), explaining_write_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            drawing.draw(plot).savefig(path, format=kind, metadata=_metadata(plot, kind))
        written.append(path)
    return written


def safe_names(names: Sequence[str]) -> list[str]:
    """Make file names of labels that may hold anything: letters, digits and hyphens, all different."""
    made: list[str] = []
    for name in names:
        base = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:60] or "method"
        tries = iter([base, *(f"{base}-{k}" for k in range(2, len(names) + 2))])
        made.append(next(one for one in tries if one.lower() not in {other.lower() for other in made}))
    return made


def _metadata(plot: Plot, kind: str) -> dict[str, Any]:
    """Return title and caption; no dates, so that the same run gives the same file."""
    if kind == "pdf":
        return {"Title": plot.title, "Subject": plot.caption, "CreationDate": None}
    if kind == "svg":
        return {"Title": plot.title, "Description": plot.caption, "Date": None}
    return {"Title": plot.title, "Description": plot.caption}
