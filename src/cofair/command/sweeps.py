"""What `cofair sweep` and `cofair reproduce` print."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape
from scipy import stats

from cofair.command.console import new_table, output, print_table
from cofair.report.read import read_run
from cofair.reproduce.measured import Line, Value
from cofair.runs.folder import write_whole
from cofair.runs.grid import Point
from cofair.runs.sweep import Job, unfinished

_MEASURED = ("fairness", "max", "mean", "min", "rate")
_PERCENT = ("max", "mean", "min")


def sweep_frame(points: Sequence[Point], jobs: Sequence[Job], rules: Sequence[str] = ("last", "best")) -> pd.DataFrame:
    """Return one row a finished run and rule: what was varied, and what was measured."""
    rows = []
    for point, job in zip(points, jobs, strict=True):
        if unfinished([job]):
            continue
        outcome = read_run(job.folder).outcome
        for rule in rules:
            cell = outcome.cell(rule)
            measured = {name: getattr(cell, name) for name in _MEASURED}
            extra = {"download": outcome.download, "seconds": outcome.seconds, "folder": job.folder.name}
            rows.append({**point.varied, "rule": rule, **measured, **extra})
    return pd.DataFrame(rows)


def grouped(frame: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """Return one row a combination without the seed: mean and sample standard deviation over seeds."""
    keys = [key for key in (*varied, "rule") if key != "run.seed"]
    rows = []
    for values, own in frame.groupby(keys, sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(keys, values if isinstance(values, tuple) else (values,), strict=True))
        row["seeds"] = len(own)
        for name in _MEASURED:
            known = own[name].dropna().astype(float)
            row[name] = float(known.mean()) if len(known) else None
            row[f"{name}_std"] = float(known.std(ddof=1)) if len(known) > 1 else None
        rows.append(row)
    return pd.DataFrame(rows)


def paired(frame: pd.DataFrame, varied: Sequence[str], rule: str) -> pd.DataFrame:
    """Compare the methods' fairness and best accuracy with the first one's, seed by seed.

    Differences are taken between runs that differ in nothing else; p is that of a paired t-test, from 3 pairs on.
    """
    if "method.name" not in varied:
        return pd.DataFrame()
    own = frame[frame["rule"] == rule]
    fixed = [key for key in varied if not key.startswith("method.")]
    labels = own.apply(lambda row: _label(row, varied), axis=1)
    first = labels.iloc[0] if len(labels) else None
    rows = []
    for label in dict.fromkeys(labels):
        if label == first:
            continue
        left, right = (
            own[labels == name].set_index(fixed) if fixed else own[labels == name] for name in (label, first)
        )
        for name in ("fairness", "max"):
            pairs = (left[name].astype(float) - right[name].astype(float)).dropna()
            if len(pairs):
                spread = float(pairs.std(ddof=1)) if len(pairs) > 1 else None
                p = float(stats.ttest_1samp(pairs, 0).pvalue) if len(pairs) > 2 and spread else None
                rows.append({"method": label, "against": first, "quantity": name, "pairs": len(pairs),
                             "difference": float(pairs.mean()), "std": spread, "p": p})  # fmt: skip
    return pd.DataFrame(rows)


def _label(row: "pd.Series[Any]", varied: Sequence[str]) -> str:
    settings = [
        f"{key.partition('.')[2]} {row[key]}"
        for key in varied
        if key.startswith("method.") and key != "method.name" and not pd.isna(row.get(key))
    ]
    return " ".join([str(row["method.name"]), *settings])


def print_sweep(points: Sequence[Point], jobs: Sequence[Job], rule: str, out: Path, *, as_json: bool) -> None:
    """Print and write the table of a sweep and its paired comparisons."""
    varied = list(dict.fromkeys(key for point in points for key in point.varied))
    frame = sweep_frame(points, jobs)
    if frame.empty:
        return
    table = grouped(frame, varied)
    pairs = paired(frame, varied, rule)
    write_whole(out / "runs.csv", frame.to_csv(index=False))
    write_whole(out / "summary.csv", table.to_csv(index=False))
    if as_json:
        own = {"table": table, "paired": pairs}
        print(json.dumps({name: json.loads(part.to_json(orient="records")) for name, part in own.items()}, indent=1))
        return
    console = output()
    shown = new_table()
    keys = [key for key in varied if key != "run.seed"]
    for key in keys:
        shown.add_column(key.partition(".")[2] if key != "method.name" else "method", no_wrap=True)
    for name in ("fairness γ", "max %", "mean %", "min %", "rate", "seeds"):
        shown.add_column(name, justify="right", no_wrap=True)
    for _, row in table[table["rule"] == rule].iterrows():
        cells = ["" if pd.isna(row[key]) else escape(str(row[key])) for key in keys]
        shown.add_row(*cells, *[_spread(row, name) for name in _MEASURED], str(row["seeds"]))
    print_table(console, shown)
    if len(pairs):
        shown = new_table()
        for name in ("method", "against", "quantity", "pairs", "difference", "p"):
            shown.add_column(
                name, justify="left" if name in ("method", "against", "quantity") else "right", no_wrap=True
            )
        for _, row in pairs.iterrows():
            scale = 100 if row["quantity"] in _PERCENT else 1
            spread = "" if pd.isna(row["std"]) else f" ± {scale * row['std']:.2f}"
            p = "" if pd.isna(row["p"]) else f"{row['p']:.3f}"
            name = "fairness γ" if row["quantity"] == "fairness" else "max %"
            shown.add_row(
                escape(row["method"]), escape(row["against"]), name, str(row["pairs"]),
                f"{scale * row['difference']:+.2f}{spread}", p,
            )  # fmt: skip
        print_table(console, shown)
    print(f"Written: {out / 'summary.csv'}, {out / 'runs.csv'} and a folder for each run.")


def _spread(row: "pd.Series[Any]", name: str) -> str:
    if pd.isna(row[name]):
        return "–"
    scale, digits = (100, 1) if name in _PERCENT else (1, 2 if name == "rate" else 1)
    spread = row[f"{name}_std"]
    text = f"{scale * row[name]:.{digits}f}"
    return text if pd.isna(spread) else f"{text} ± {scale * spread:.{digits}f}"


def print_reproduction(
    name: str, lines: Sequence[Line], rules: Sequence[str], *, as_json: bool, as_markdown: bool = False
) -> None:
    """Print published against measured, cell by cell."""
    if as_markdown:
        print(markdown(lines, rules))
        return
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
        return
    console = output()
    console.print(
        f"[bold]{escape(name)}: published, measured by the rules {' and '.join(rules)}, and the difference[/]"
    )
    shown = new_table()
    for column in ("data", "scene", "method"):
        shown.add_column(column, no_wrap=True)
    for column in ("published", *[text for rule in rules for text in (rule, "difference")]):
        shown.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        own = line.published
        place = own.data if own.clients == 10 else f"{own.data}, {own.clients} clients"
        cells = [_value(Value(own.mean, own.std, 0))]
        for rule in rules:
            difference = line.difference(rule)
            cells += [
                _value(line.measured[rule]),
                "" if difference is None else f"{difference:+.{2 if abs(own.mean) >= 1 else 4}f}",
            ]
        shown.add_row(escape(place), escape(own.scene), escape(_metric(own.metric) + own.method), *cells)
    print_table(console, shown)
    done = [line for line in lines if line.measured[rules[0]] is not None]
    if done:
        gaps = [abs(line.difference(rules[0]) or 0.0) for line in done]
        print(f"{len(done)} of {len(lines)} cells measured; median gap by '{rules[0]}' {np.median(gaps):.3g}.")


def markdown(lines: Sequence[Line], rules: Sequence[str]) -> str:
    """Return published against measured as a table for a page: one row a cell, one column a method."""
    methods = list(dict.fromkeys(line.published.method for line in lines))
    places: dict[tuple[str, str, str], dict[str, str]] = {}
    for line in lines:
        own = line.published
        where = (
            own.data if own.clients == 10 else f"{own.data}, {own.clients} clients",
            own.scene,
            _metric(own.metric),
        )
        measured = [_short(line.measured[rule]) for rule in rules]
        places.setdefault(where, {})[own.method] = f"{own.mean:g} → {' / '.join(measured)}"
    rows = ["| " + " | ".join(["cell", *methods]) + " |", "| " + " | ".join(["---"] * (len(methods) + 1)) + " |"]
    for (data, scene, metric), cells in places.items():
        name = f"{metric}{data} {scene}"
        rows.append("| " + " | ".join([name, *[cells.get(method, "") for method in methods]]) + " |")
    return "\n".join(row.replace("|r", "\\|r").replace("|q", "\\|q") for row in rows)


def _short(value: Value | None) -> str:
    return "–" if value is None else f"{value.mean:.2f}" if abs(value.mean) <= 1 else f"{value.mean:.1f}"


def _metric(name: str) -> str:
    return {
        "mean_test_accuracy_pct": "mean of ", "min_client_test_accuracy_pct_given_rho>95": "min of ",
        "l1diff_vs_exact": "l1 of ", "l2diff_vs_exact": "l2 of ", "mean_psi": "ψ of ",
        "mean_reward_sparsity_pct": "left out, %, of ",
    }.get(name, "")  # fmt: skip


def _value(value: Value | None) -> str:
    if value is None:
        return "–"
    digits = 2 if abs(value.mean) >= 1 else 4
    return f"{value.mean:.{digits}f}" if value.std is None else f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"
