"""`cofair ledger`: the commands; what they do is in `ledgers`, which takes long to load."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli.options import Json

app = typer.Typer(
    help="The ledger of a run: verify it, show a client's lines, check a statement.", no_args_is_help=True
)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run or of a comparison.")],
    head: Annotated[str | None, typer.Option(metavar="HASH", help="A hash that some entry must have.")] = None,
) -> None:
    """Check that nothing in a ledger was altered, removed, inserted or reordered, and that its folder says the same."""
    from cofair.cli import ledger_output

    ledger_output.verify(folder, head)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    client: Annotated[str, typer.Option(metavar="NAME", help="Whose lines.")],
    as_json: Json = False,
) -> None:
    """Print what the ledger says of one client, round by round."""
    from cofair.cli import ledger_output

    ledger_output.show(folder, client, as_json=as_json)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run or of a comparison.")],
    statement: Annotated[
        Path, typer.Argument(metavar="STATEMENT.html", help="What 'cofair report --client' has written.")
    ],
) -> None:
    """Compare a client's statement with the ledger: is what it was told then what the ledger says now."""
    from cofair.cli import ledger_output

    ledger_output.check(folder, statement)
