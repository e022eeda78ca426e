"""What `cofair sweep` prints and writes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from scipy import stats

from cofair.cli.console import new_table, output, print_table
from cofair.cli.headline import print_headline
from cofair.config.grid import Point
from cofair.config.job import Job
from cofair.report.reported_runs import read_run
from cofair.results.columns import MEASURED, NAMED, over_seeds, shown
from cofair.runs.jobs import unfinished
from cofair.storage.folder import write_whole


def sweep_frame(points: Sequence[Point], jobs: Sequence[Job], rules: Sequence[str] = ("last", "best")) -> pd.DataFrame:
    """Return one row per finished run and rule: what was varied, and what was measured.

    A setting that varies only among failed runs has a column too, so that the others can be grouped by it.
    """
    varied = varied_keys(points)
    rows = []
    for point, job in zip(points, jobs, strict=True):
        if unfinished([job]):
            continue
        outcome = read_run(job.path).outcome
        for rule in rules:
            own = {key: _cell(point.varied.get(key)) for key in varied}
            rows.append({**own, "rule": rule, **outcome.row(rule), "folder": job.name})
    return pd.DataFrame(rows)


def varied_keys(points: Sequence[Point]) -> list[str]:
    """Return every setting that the grid varies, including those that only some of its experiments have."""
    return list(dict.fromkeys(key for point in points for key in point.varied))


def grouped(frame: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """Return one row per combination without the seed: mean and sample standard deviation over seeds."""
    keys = [key for key in (*varied, "rule") if key != "run.seed"]
    rows = []
    for values, own in frame.groupby(keys, sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(keys, values if isinstance(values, tuple) else (values,), strict=True))
        row["seeds"] = len(own)
        for column in MEASURED:
            if column.name in own:
                row |= over_seeds(column, list(own[column.name]))
        rows.append(row)
    return pd.DataFrame(rows)


def paired(frame: pd.DataFrame, varied: Sequence[str], rule: str) -> pd.DataFrame:
    """Compare the methods' fairness and best accuracy with the first one's, seed by seed.

    Differences are taken between runs that differ in their method alone, and summed up over seeds only; p is that of a
    paired t-test, for 3 pairs or more.
    """
    if "method.name" not in varied or frame.empty:
        return pd.DataFrame()
    own = frame[frame["rule"] == rule].copy()
    own["label"] = own.apply(lambda row: _label(row, varied), axis=1)
    first = own["label"].iloc[0]
    scene = [key for key in varied if not key.startswith("method.") and key != "run.seed"]
    rows = []
    for values, group in own.groupby(scene, sort=False, dropna=False) if scene else [((), own)]:
        where = dict(zip(scene, values if isinstance(values, tuple) else (values,), strict=True))
        seeds = "run.seed" if "run.seed" in varied else "rule"
        against = group[group["label"] == first].set_index(seeds)
        for label in dict.fromkeys(group["label"]):
            if label != first:
                runs = group[group["label"] == label].set_index(seeds)
                rows += [
                    {
                        **where,
                        "method": label,
                        "against": first,
                        "quantity": column.name,
                        **_difference(runs, against, column.name),
                    }
                    for column in MEASURED
                    if column.paired
                ]
    return pd.DataFrame(rows)


def _difference(runs: pd.DataFrame, against: pd.DataFrame, name: str) -> dict[str, Any]:
    pairs = (runs[name].astype(float) - against[name].astype(float)).dropna()
    spread = float(pairs.std(ddof=1)) if len(pairs) > 1 else None
    p = float(stats.ttest_1samp(pairs, 0).pvalue) if len(pairs) > 2 and spread else None
    mean = float(pairs.mean()) if len(pairs) else None
    return {"pairs": len(pairs), "difference": mean, "std": spread, "p": p}


def _label(row: "pd.Series[Any]", varied: Sequence[str]) -> str:
    settings = [
        f"{key.partition('.')[2]} {_setting(row[key])}"
        for key in varied
        if key.startswith("method.") and key != "method.name" and not pd.isna(row.get(key))
    ]
    return " ".join([str(row["method.name"]), *settings])


def _cell(value: object) -> object:
    """Return a setting that rows can be grouped by: a list as its text."""
    return str(list(value)) if isinstance(value, list | tuple) else value


def _setting(value: object) -> str:
    """Write a setting; pandas turns whole numbers into 32.0 where a column has gaps."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def print_sweep(points: Sequence[Point], jobs: Sequence[Job], rule: str, out: Path, *, as_json: bool) -> None:
    """Print and write the table of a sweep and its paired comparisons."""
    varied = varied_keys(points)
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
    keys = [key for key in varied if key != "run.seed"]
    read = table[table["rule"] == rule]
    rows = [{str(key): value for key, value in row.items()} for row in read.to_dict(orient="records")]
    print_headline(
        console, [key.partition(".")[2] if key != "method.name" else "method" for key in keys],
        [(["" if pd.isna(row[key]) else _setting(row[key]) for key in keys], row) for row in rows],
        shown(read, MEASURED), trailing=["seeds"], undefined="–",
    )  # fmt: skip
    if len(pairs):
        _print_pairs(console, pairs, [key for key in varied if key != "run.seed" and not key.startswith("method.")])
    print(f"Written: {out / 'summary.csv'}, {out / 'runs.csv'} and a folder for each run.")


def _print_pairs(console: Console, pairs: pd.DataFrame, scene: Sequence[str]) -> None:
    table = new_table()
    for name in (*[key.partition(".")[2] for key in scene], "method", "against", "quantity"):
        table.add_column(name, no_wrap=True)
    for name in ("pairs", "difference", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for _, row in pairs.iterrows():
        column = NAMED[row["quantity"]]
        spread = "" if pd.isna(row["std"]) else f" ± {column.factor * row['std']:.2f}"
        difference = "–" if pd.isna(row["difference"]) else f"{column.factor * row['difference']:+.2f}{spread}"
        where = ["" if pd.isna(row[key]) else escape(str(row[key])) for key in scene]
        p = "" if pd.isna(row["p"]) else f"{row['p']:.3f}"
        table.add_row(
            *where, escape(row["method"]), escape(row["against"]), column.heading, str(row["pairs"]), difference, p
        )
    print_table(console, table)
