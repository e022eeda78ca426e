"""What `cofair sweep` prints."""

import json
from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.markup import escape

from cofair.cli.console import new_table, output, print_failures, print_table
from cofair.cli.headline import print_headline
from cofair.results.columns import COMPARED, NAMED, shown
from cofair.results.sweep_result import SweepResult, short_setting


def print_sweep(result: SweepResult, rule: str, *, as_json: bool) -> None:
    """Print the table of a sweep and its paired comparisons."""
    varied, table, pairs = result.varied, result.to_frame(), result.paired(rule)
    if as_json:
        parts = {"table": table, "paired": pairs}
        own = {name: json.loads(part.to_json(orient="records")) for name, part in parts.items()}
        print(json.dumps({**own, "failures": result.failures}, indent=1))
        return
    console = output()
    if table.empty:
        print_failures(console, result.failures)
        return
    keys = [key for key in varied if key != "run.seed"]
    read = table[table["rule"] == rule]
    rows = [{str(key): value for key, value in row.items()} for row in read.to_dict(orient="records")]
    print_headline(
        console, [key.partition(".")[2] if key != "method.name" else "method" for key in keys],
        [(["" if pd.isna(row[key]) else short_setting(row[key]) for key in keys], row) for row in rows],
        shown(read, COMPARED), trailing=["seeds"], undefined="–",
    )  # fmt: skip
    print_failures(console, result.failures)
    if len(pairs):
        _print_pairs(console, pairs, [key for key in varied if key != "run.seed" and not key.startswith("method.")])


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
