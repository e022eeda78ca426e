"""What `cofair compare` and `cofair run` print: tables for people, JSON for machines."""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cofair.cli.console import narrowest, new_table, output, print_failures, print_json, print_table
from cofair.cli.headline import TableLayout, left_out, print_headline
from cofair.config.experiment import Experiment
from cofair.results.columns import NAMED, Column, shown
from cofair.results.comparison import Comparison
from cofair.results.result import Outcome
from cofair.results.table_cells import DELIVERED, LAST_ROUNDS

SHOWN_CLIENTS = 20  # more clients than this are summarised instead of listed


def print_comparison(result: Comparison, experiment: Experiment, rule: str, *, as_json: bool) -> None:
    """Print one row per method, then what each client brought and got."""
    frame = result.to_frame(rule)
    if as_json:
        clients = json.loads(result.clients_frame().to_json(orient="records"))
        methods = json.loads(frame.to_json(orient="records"))
        parts = {"experiment": experiment.to_dict(), "methods": methods, "clients": clients}
        settings = {job.experiment.method.name: job.experiment.to_dict()["method"] for job in result.jobs}
        print_json({**parts, "settings": settings, "failures": result.failures})
        return
    console = output()
    console.print(f"[bold]{_title(experiment, rule)}[/]")
    columns = shown(frame)
    rows = [{str(key): value for key, value in row.items()} for row in frame.to_dict(orient="records")]
    layout = print_headline(console, ["method"], [([str(row["method"])], row) for row in rows], columns)
    _notes(console, frame, columns, layout)
    print_failures(console, result.failures)
    _clients(console, [result.of(name) for name in result.methods], experiment)


def print_run(result: Outcome, experiment: Experiment, *, as_json: bool) -> None:
    """Print one run."""
    if as_json:
        print_json({"experiment": experiment.to_dict(), **result.summary()})
        return
    print_comparison(Comparison((result,)), experiment, DELIVERED, as_json=False)


def _title(experiment: Experiment, rule: str) -> str:
    own, training = experiment.federation, experiment.training
    reading = {
        DELIVERED: "models delivered in the end",
        "last": _last_rounds(training.rounds),
        "best": "best round on the test set",
        "joint": "round chosen on the validation set",
    }[rule]
    spread = f"scene {own.scene}, {own.clients} clients" if own.by is None else f"by {own.by}"
    return f"{own.data}, {spread}, {training.rounds} rounds ({reading})"


def _last_rounds(rounds: int) -> str:
    return "mean of the final ten rounds" if rounds >= LAST_ROUNDS else "mean of all rounds"


def _notes(console: Console, frame: pd.DataFrame, columns: Sequence[Column], layout: TableLayout) -> None:
    """Explain the numbers that are shown."""
    notes = [column.note for column in layout.columns if column.note is not None]
    if NAMED["fairness"] in layout.spread and frame["fairness_low"].notna().any():
        notes.append(r"\[low, high]: 95 % bootstrap interval over clients")
    if any(frame[f"{column.name}_std"].notna().any() for column in layout.spread):
        notes.append("±: standard deviation over seeds")
    console.print(f"[dim]{'; '.join(notes)}.[/]")
    if (frame["fairness_defined"] < frame["seeds"]).any():
        console.print("[dim]undefined: all rewards (or all contributions) are equal, so there is no correlation.[/]")
    if missing := left_out(columns, layout, frame):
        console.print(f"[dim]Too narrow to show: {', '.join(missing)}; --json has everything.[/]")


def _clients(console: Console, outcomes: Sequence[Sequence[Outcome]], experiment: Experiment) -> None:
    """Print what each client brought and got, the mean over seeds; methods in as many blocks as the width needs."""
    seeds = max(outcomes, key=len)  # of a method whose runs failed there are fewer
    names = seeds[0].names
    if len(names) > SHOWN_CLIENTS:
        console.print(f"[dim]{len(names)} clients: see clients.csv (--out DIR) for each of them.[/]")
        return
    over = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0].seed}"
    console.print(f"[bold]What each client brought and got: accuracy in % of the model after the last round, {over}[/]")
    left = list(outcomes)
    while left:
        count = len(left)
        while count > 1 and narrowest(console, _block(left[:count], seeds)) > console.width:
            count -= 1
        print_table(console, _block(left[:count], seeds))
        left = left[count:]


def _block(outcomes: Sequence[Sequence[Outcome]], seeds: Sequence[Outcome]) -> Table:
    table = new_table()
    table.add_column("client", no_wrap=True)
    for column in ("samples", "brought", *[f"got:\n{escape(own[0].method)}" for own in outcomes]):
        table.add_column(column, justify="right", no_wrap=True)
    samples = np.mean([outcome.sizes for outcome in seeds], axis=0)
    brought = np.mean([outcome.contributions for outcome in seeds], axis=0)
    accuracy = seeds[0].contributions_are_accuracies
    got = [100 * np.mean([outcome.accuracies for outcome in own], axis=0) for own in outcomes]
    for i, name in enumerate(seeds[0].names):
        own = f"{100 * brought[i]:.1f}" if accuracy else f"{brought[i]:.3g}"
        table.add_row(escape(name), f"{samples[i]:.0f}", own, *[f"{accuracies[i]:.1f}" for accuracies in got])
    return table
