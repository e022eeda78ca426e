"""`cofair data`: what data sets there are, fetch one, where it lies."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli.options import Json

app = typer.Typer(help="Data sets: what there is, fetch one, where it lies.", no_args_is_help=True)


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List the data sets and whether they are here."""
    from cofair.cli import table_output

    table_output.datasets(as_json=as_json)


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
    """Print where a data set lies."""
    from cofair.data import datasets

    print(datasets.path(name))
