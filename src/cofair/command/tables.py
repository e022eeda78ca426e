"""What commands print: tables for people, JSON for machines."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from cofair.federation import datasets as data
from cofair.methods import METHODS
from cofair.runs.compare import Comparison
from cofair.runs.experiment import Experiment
from cofair.runs.result import Outcome
from cofair.settings import describe

SHOWN_CLIENTS = 20  # more clients than this are summarised instead of listed


def comparison(result: Comparison, experiment: Experiment, rule: str, *, as_json: bool) -> None:
    """Print one row a method, then what each client brought and got."""
    frame = result.to_frame(rule)
    if as_json:
        clients = json.loads(result.clients_frame().to_json(orient="records"))
        methods = json.loads(frame.to_json(orient="records"))
        print(json.dumps({"experiment": experiment.to_dict(), "methods": methods, "clients": clients}))
        return
    console = _console()
    console.print(f"[bold]{_title(experiment, rule)}[/]")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("method")
    for name in ("fairness γ", "max %", "mean %", "min %", "rate", "download", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _rows(frame):
        table.add_row(
            str(row["method"]),
            _fairness(row),
            *[_spread(row, name, 1) for name in ("max", "mean", "min")],
            _spread(row, "rate", 2),
            f"{100 * row['download']:.0f} %",
            f"{row['seconds']:.1f}",
        )
    console.print(table)
    _notes(console, frame, experiment)
    _clients(console, [result.of(name) for name in result.methods], experiment)


def outcome(result: Outcome, experiment: Experiment, *, as_json: bool) -> None:
    """Print one run."""
    if as_json:
        print(json.dumps({"experiment": experiment.to_dict(), **result.summary()}))
        return
    comparison(Comparison((result,)), experiment, "last", as_json=False)


def methods(*, as_json: bool) -> None:
    """Print every method with its paper and settings."""
    if as_json:
        print(
            json.dumps(
                [
                    {"name": m.name, "paper": m.paper, "settings": [asdict(setting) for setting in describe(m)]}
                    for m in METHODS.values()
                ]
            )
        )
        return
    console = _console()
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
        print(json.dumps([asdict(row) | {"path": None if row.path is None else str(row.path)} for row in rows]))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("name", "train", "test", "shape", "classes", "here", "licence"):
        table.add_column(name, justify="right" if name in ("train", "test", "classes") else "left")
    for row in rows:
        shape = "×".join(map(str, row.shape)) if row.kind == "image" else "text"
        here = "no: cofair data get " + row.name if row.path is None else "yes"
        table.add_row(row.name, f"{row.train:,}", f"{row.test:,}", shape, str(row.classes), here, row.licence)
    _console().print(table)


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width: do not fold a table there
        console = Console(highlight=False, width=160)
    return console


def _title(experiment: Experiment, rule: str) -> str:
    own, training = experiment.federation, experiment.training
    reading = {
        "last": "mean of the final ten rounds",
        "best": "best round on the test set",
        "joint": "round chosen on the validation set",
    }[rule]
    return f"{own.data}, scene {own.scene}, {own.clients} clients, {training.rounds} rounds ({reading})"


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict(orient="records")]


def _fairness(row: dict[str, Any]) -> str:
    value = row["fairness"]
    if value is None or pd.isna(value):
        return "undefined"
    if row["fairness_low"] is not None and not pd.isna(row["fairness_low"]):
        return f"{value:.1f} [{row['fairness_low']:.0f}, {row['fairness_high']:.0f}]"
    return _spread(row, "fairness", 1)


def _spread(row: dict[str, Any], name: str, digits: int) -> str:
    text = f"{row[name]:.{digits}f}"
    spread = row[f"{name}_std"]
    return text if spread is None or pd.isna(spread) else f"{text} ± {spread:.{digits}f}"


def _notes(console: Console, frame: pd.DataFrame, experiment: Experiment) -> None:
    one_seed = bool((frame["seeds"] == 1).all())
    spread = "95 % bootstrap interval over clients" if one_seed else "± standard deviation over seeds"
    console.print(f"[dim]γ = 100 × Pearson(contribution, accuracy), {spread}; rate: share of clients inside α-BCF.[/]")
    if (frame["fairness_defined"] < frame["seeds"]).any():
        console.print("[dim]undefined: all rewards (or all contributions) are equal, so there is no correlation.[/]")


def _clients(console: Console, outcomes: Sequence[Sequence[Outcome]], experiment: Experiment) -> None:
    """Print what each client brought and got, the mean over seeds."""
    seeds = outcomes[0]
    names = seeds[0].names
    if len(names) > SHOWN_CLIENTS:
        console.print(f"[dim]{len(names)} clients: see clients.csv (--out DIR) for each of them.[/]")
        return
    over = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0].seed}"
    console.print(f"[bold]What each client brought and got: accuracy in %, {over}[/]")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("client")
    for column in ("samples", "brought", *[f"got: {own[0].method}" for own in outcomes]):
        table.add_column(column, justify="right")
    samples = np.mean([outcome.sizes for outcome in seeds], axis=0)
    brought = 100 * np.mean([outcome.contributions for outcome in seeds], axis=0)
    got = [100 * np.mean([outcome.accuracies for outcome in own], axis=0) for own in outcomes]
    for i, name in enumerate(names):
        table.add_row(_escaped(name), f"{samples[i]:.0f}", f"{brought[i]:.1f}", *[f"{own[i]:.1f}" for own in got])
    console.print(table)


def _escaped(name: str) -> str:
    from rich.markup import escape

    return escape(name)
