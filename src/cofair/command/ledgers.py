"""`cofair ledger`: is a ledger whole, and what does it say of a client."""

import json
from pathlib import Path

from rich.markup import escape

from cofair.command.console import new_table, output, print_table
from cofair.errors import RunError, UsageError, nearest
from cofair.runs.ledger import Entry, verified

LEDGER = "ledger.jsonl"


def verify(folder: Path, head: str | None) -> None:
    """Verify the ledger of a run, or of every run in a folder, and print the heads."""
    own = _ledgers(folder)
    if head is not None and len(own) > 1:
        raise UsageError(f"--head is about one ledger, and {folder} holds {len(own)} runs: name the folder of one.")
    for path in own:
        entries = verified(path, head)
        _check_summary(path, entries)
        told = f"{path.parent}: {len(entries)} entries up to round {entries[-1]['round']}, nothing altered; head"
        print(f"{told} {entries[-1]['hash']}")


def show(folder: Path, client: str, *, as_json: bool) -> None:
    """Print a client's part of every entry."""
    own = _ledgers(folder)
    if len(own) > 1:
        raise UsageError(f"{folder} holds {len(own)} runs: name the folder of one.")
    entries = verified(own[0])
    _check_summary(own[0], entries)
    lines = client_lines(entries, client)
    if as_json:
        print(json.dumps(lines, indent=1))
        return
    table = new_table()
    for name in ("round", "contribution", "accuracy", "reputation", "neurons", "rounds taken part", "reward (SHA-256)"):
        table.add_column(name, justify="left" if name.startswith("reward") else "right", no_wrap=True)
    for line in lines:
        numbers = [line["contribution"], line["accuracy"], line["reputation"]]
        shown = ["" if number is None else f"{number:.4f}" for number in numbers]
        neurons = "" if line["neurons"] is None else str(line["neurons"])
        table.add_row(str(line["round"]), *shown, neurons, str(line["took_part"]), line["reward"])
    print_table(output(), table)
    for line in lines:
        for t, why in line["refused"]:
            output().print(f"Refused in round {t}: {escape(why)}")
    print(f"head {entries[-1]['hash']}")


def client_lines(entries: list[Entry], client: str) -> list[Entry]:
    """Return what each entry after the first says of a client."""
    names = [str(name) for name in entries[0].get("clients", [])]
    if client not in names:
        raise UsageError(f"There is no client {client!r} in this ledger: {nearest(client, names)}")
    i = names.index(client)
    try:
        return [
            {
                "round": entry["round"],
                "contribution": entry["contributions"][i],
                "accuracy": entry["accuracies"][i],
                "reputation": entry["reputation"][i] if "reputation" in entry else None,
                "neurons": entry["neurons"][i] if "neurons" in entry else None,
                "took_part": entry["took_part"][i],
                "refused": [[t, why] for t, name, why in entry["refused"] if name == client],
                "reward": entry["rewards"][i],
            }
            for entry in entries[1:]
        ]
    except (KeyError, IndexError, TypeError, ValueError):
        raise RunError("This ledger is whole, but was not written by this version of cofair.") from None


def _ledgers(folder: Path) -> list[Path]:
    if (folder / LEDGER).exists():
        return [folder / LEDGER]
    found = sorted(folder.glob(f"*/{LEDGER}"))
    if not found:
        raise UsageError(f"{folder} holds no ledger: name a folder that 'cofair run --out' has written.")
    return found


def _check_summary(path: Path, entries: list[Entry]) -> None:
    """Compare with the head that the summary of a finished run names."""
    try:
        named = json.loads((path.parent / "summary.json").read_text(encoding="utf-8"))["ledger"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{path.parent / 'summary.json'} is damaged: it does not name the ledger's head.") from None
    if named != entries[-1]["hash"]:
        raise RunError(
            f"The ledger {path} does not end as summary.json says: its last entry, {len(entries) - 1}, is not the one "
            f"with the hash {named}, so something after it was removed, or one of the two was rewritten."
        )
