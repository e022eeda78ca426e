"""`cofair data`: list data sets, fetch one, print where it is stored."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cofair.cli.options import Json

if TYPE_CHECKING:
    from rich.table import Table

    from cofair.data.datasets import Description

app = typer.Typer(help="Data sets: list them, fetch one, print where it is stored.", no_args_is_help=True)


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List the data sets and whether they are here."""
    from cofair.cli.console import new_table, output, print_json, print_table, widest_that_fits
    from cofair.data import datasets

    rows = datasets.describe()
    if as_json:
        print_json([asdict(row) | {"path": None if row.path is None else str(row.path)} for row in rows])
        return
    here = [_state(row) for row in rows]

    def make(licences: bool) -> "Table":
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


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="Name of the data set.")],
    from_path: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="Files you already have, as published or packed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch it again though it is here.")] = False,
) -> None:
    """Fetch a data set, check it and store it."""
    from cofair.cli.progress import download_progress
    from cofair.data import datasets

    with download_progress() as progress:
        stored = datasets.get(name, from_path=from_path, progress=progress, force=force)
    print(stored)


@app.command()
def path(name: Annotated[str, typer.Argument(help="Name of the data set.")]) -> None:
    """Print where a data set is stored."""
    from cofair.data import datasets

    print(datasets.path(name))


def _state(row: "Description") -> str:
    if row.path is None:
        return "no"
    return "yes" if row.verified else "not verified" if row.verified is False else "damaged"
