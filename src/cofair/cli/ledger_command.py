"""`cofair ledger`: is a ledger whole, what does it say of a client, does the ledger still say what the client was told."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cofair.cli.options import Json
from cofair.errors import RunError, UsageError

app = typer.Typer(
    help="The ledger of a run: verify it, show a client's lines, check a statement.", no_args_is_help=True
)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run or of a comparison.")],
    head: Annotated[str | None, typer.Option(metavar="HASH", help="A hash that some entry must have.")] = None,
) -> None:
    """Check that nothing in a ledger was altered, removed, inserted or reordered, and that its folder says the same."""
    from cofair.storage.agreement import checked_against_ledger

    own = _folders(folder)
    if head is not None and len(own) > 1:
        raise UsageError(f"--head is about one ledger, and {folder} holds {len(own)} runs: name the folder of one.")
    for path in own:
        audit = checked_against_ledger(path, head)
        last, remarks = audit.entries[-1], "".join(f" ({remark})" for remark in audit.remarks)
        print(
            f"{path}: {len(audit.entries)} entries up to round {last['round']}, nothing altered, and the folder says "
            f"what they say{remarks}; head {last['hash']}"
        )


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    client: Annotated[str, typer.Option(metavar="NAME", help="Whose lines.")],
    as_json: Json = False,
) -> None:
    """Print what the ledger says of one client, round by round."""
    from rich.markup import escape

    from cofair.cli.console import new_table, output, print_table
    from cofair.storage.audit import checked_entries, client_lines

    own = _folders(folder)
    if len(own) > 1:
        raise UsageError(f"{folder} holds {len(own)} runs: name the folder of one.")
    lines = client_lines(checked_entries(own[0]), client)
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
        return
    table = new_table()
    for name in ("round", "contribution", "accuracy", "reputation", "neurons", "rounds taken part", "reward (SHA-256)"):
        table.add_column(name, justify="left" if name.startswith("reward") else "right", no_wrap=True)
    for line in lines:
        numbers = [line.contribution, line.accuracy, line.reputation]
        shown = ["" if number is None else f"{number:.4f}" for number in numbers]
        neurons = "" if line.neurons is None else str(line.neurons)
        table.add_row(str(line.round), *shown, neurons, str(line.took_part), escape(line.reward or ""))
    print_table(output(), table)
    for line in lines:
        for t, why in line.refused:
            output().print(f"Refused in round {t}: {escape(why)}")
    if lines:
        print(f"head {lines[-1].head}")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run or of a comparison.")],
    statement: Annotated[
        Path, typer.Argument(metavar="STATEMENT.html", help="What 'cofair report --client' has written.")
    ],
) -> None:
    """Compare a client's statement with the ledger: does the ledger still say what the client was told."""
    from cofair.report.ledger_section import ledger_cells, read_statement
    from cofair.storage.agreement import checked_against_ledger
    from cofair.storage.audit import checked_entries, client_lines

    client, rows = read_statement(statement)
    ledgers = {path: checked_entries(path) for path in _folders(folder)}
    for row in rows:
        found = [
            (path, line)
            for path, entries in ledgers.items()
            if any(entry["hash"] == row["head"] for entry in entries)
            for line in client_lines(entries, client)
            if line.head == row["head"]
        ]
        if not found:
            raise RunError(
                f"No ledger in {folder} has the head {row['head'][:64]} that {statement} names for client {client!r}: "
                "it was cut off or rewritten since, or is the ledger of another run."
            )
        path, line = found[0]
        checked_against_ledger(path)
        seed = ledgers[path][0].get("facts", {}).get("seed", row["seed"])  # earlier versions wrote no seed
        for name, said in ledger_cells(seed, line).items():
            if row.get(name, said) != said:
                raise RunError(
                    f"{statement} says that the {name} of client {client!r} in round {line.round} is "
                    f"{row[name][:80]}, but the ledger in {path} says {said}."
                )
        print(f"{path}: what client {client} was told of round {line.round} is what the ledger says; head {line.head}")


def _folders(folder: Path) -> list[Path]:
    """Return the run folders that have a ledger: the folder itself, or those in it."""
    from cofair.storage.audit import LEDGER

    if (folder / LEDGER).exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{LEDGER}"))
    if not found:
        raise UsageError(f"{folder} holds no ledger: name a folder that 'cofair run --out' has written.")
    return found
