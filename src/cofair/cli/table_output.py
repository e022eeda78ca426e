"""What commands print: tables for people, JSON for machines."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cofair.cli.console import narrowest, new_table, output, print_table, widest_that_fits
from cofair.cli.headline import Layout, left_out, print_headline
from cofair.config.experiment import Experiment
from cofair.data import datasets as data
from cofair.methods import METHODS
from cofair.results.columns import NAMED, Column, shown
from cofair.results.comparison import Comparison
from cofair.results.result import Outcome
from cofair.results.table_cells import LAST_ROUNDS
from cofair.settings import describe

SHOWN_CLIENTS = 20  # more clients than this are summarised instead of listed


def comparison(result: Comparison, experiment: Experiment, rule: str, *, as_json: bool) -> None:
    """Print one row a method, then what each client brought and got."""
    frame = result.to_frame(rule)
    if as_json:
        clients = json.loads(result.clients_frame().to_json(orient="records"))
        methods = json.loads(frame.to_json(orient="records"))
        _print_json({"experiment": experiment.to_dict(), "methods": methods, "clients": clients})
        return
    console = output()
    console.print(f"[bold]{_title(experiment, rule)}[/]")
    columns = shown(frame)
    rows = [{str(key): value for key, value in row.items()} for row in frame.to_dict(orient="records")]
    layout = print_headline(console, ["method"], [([str(row["method"])], row) for row in rows], columns)
    _notes(console, frame, columns, layout)
    _clients(console, [result.of(name) for name in result.methods], experiment)


def outcome(result: Outcome, experiment: Experiment, *, as_json: bool) -> None:
    """Print one run."""
    if as_json:
        _print_json({"experiment": experiment.to_dict(), **result.summary()})
        return
    comparison(Comparison((result,)), experiment, "last", as_json=False)


def methods(*, as_json: bool) -> None:
    """Print every method with its paper and settings."""
    if as_json:
        _print_json(
            [
                {"name": m.name, "paper": m.paper, "settings": [asdict(setting) for setting in describe(m)]}
                for m in METHODS.values()
            ]
        )
        return
    console = output()
    for method in METHODS.values():
        first_line = (method.__doc__ or "").strip().splitlines()[0]
        console.print(f"[bold]{method.name}[/]  {first_line} [dim]({method.paper})[/]", highlight=False)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
        for setting in describe(method):
            table.add_row("", setting.name, f"[cyan]{json.dumps(setting.default)}[/]", setting.text)
        if table.row_count:
            console.print(table)
        console.print()


def datasets(*, as_json: bool) -> None:
    """Print every data set and whether it is here."""
    rows = data.describe()
    if as_json:
        _print_json([asdict(row) | {"path": None if row.path is None else str(row.path)} for row in rows])
        return
    here = [_state(row) for row in rows]

    def make(licences: bool) -> Table:
        table = new_table()
        for name in ("name", "train", "test", "shape", "classes", "here"):
            table.add_column(name, justify="right" if name in ("train", "test", "classes") else "left", no_wrap=True)
        if licences:
            table.add_column("licence", min_width=28)
        for row, state in zip(rows, here, strict=True):
            shape = "×".join(map(str, row.shape)) if row.kind == "image" else "text"
            cells = [row.name, f"{row.train:,}", f"{row.test:,}", shape, str(row.classes), state]
            table.add_row(*cells, *([row.licence] if licences else []))
        return table

    console = output()
    narrow, table = widest_that_fits(console, [partial(make, True), partial(make, False)])
    print_table(console, table)
    console.print("[dim]Fetch one with 'cofair data get NAME'.[/]")
    if "not verified" in here:
        console.print("[dim]not verified: of the right sizes, but no checksum of its content is known.[/]")
    if narrow:
        console.print("[dim]Licences are shown in a wider terminal and with --json.[/]")


def _state(row: data.Description) -> str:
    if row.path is None:
        return "no"
    return "yes" if row.verified else "not verified" if row.verified is False else "damaged"


def _print_json(value: Any) -> None:
    """Print one JSON document; numbers that JSON does not have are null."""
    print(json.dumps(_finite(value), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _title(experiment: Experiment, rule: str) -> str:
    own, training = experiment.federation, experiment.training
    reading = {
        "last": _last_rounds(training.rounds),
        "best": "best round on the test set",
        "joint": "round chosen on the validation set",
    }[rule]
    return f"{own.data}, scene {own.scene}, {own.clients} clients, {training.rounds} rounds ({reading})"


def _last_rounds(rounds: int) -> str:
    return "mean of the final ten rounds" if rounds >= LAST_ROUNDS else "mean of all rounds"


def _notes(console: Console, frame: pd.DataFrame, columns: Sequence[Column], layout: Layout) -> None:
    """Say what the numbers are: of those that are shown."""
    notes = [column.note for column in layout.columns if column.note is not None]
    if NAMED["fairness"] in layout.spread and frame["fairness_low"].notna().any():
        notes.append(r"\[low, high]: 95 % bootstrap interval over clients")
    if any(frame[f"{column.name}_std"].notna().any() for column in layout.spread):
        notes.append("±: standard deviation over seeds")
    console.print(f"[dim]{'; '.join(notes)}.[/]")
    if (frame["fairness_defined"] < frame["seeds"]).any():
        console.print("[dim]undefined: all rewards (or all contributions) are equal, so there is no correlation.[/]")
    if missing := left_out(columns, layout, frame):
        console.print(f"[dim]Left out for want of width: {', '.join(missing)}; --json has everything.[/]")


def _clients(console: Console, outcomes: Sequence[Sequence[Outcome]], experiment: Experiment) -> None:
    """Print what each client brought and got, the mean over seeds; methods in as many blocks as the width needs."""
    seeds = outcomes[0]
    names = seeds[0].names
    if len(names) > SHOWN_CLIENTS:
        console.print(f"[dim]{len(names)} clients: see clients.csv (--out DIR) for each of them.[/]")
        return
    over = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0].seed}"
    console.print(
        f"[bold]What each client brought and got: accuracy in %, {_last_rounds(experiment.training.rounds)}, {over}[/]"
    )
    left = list(outcomes)
    while left:
        count = len(left)
        while count > 1 and narrowest(console, _block(left[:count])) > console.width:
            count -= 1
        print_table(console, _block(left[:count]))
        left = left[count:]


def _block(outcomes: Sequence[Sequence[Outcome]]) -> Table:
    seeds = outcomes[0]
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
