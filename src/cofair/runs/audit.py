"""What a run's ledger is worth: is it whole, does it end as the summary says, and what does it say of a client."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cofair.errors import RunError, UsageError, nearest
from cofair.runs.history import Record
from cofair.runs.ledger import Entry, verified

LEDGER, SUMMARY = "ledger.jsonl", "summary.json"


@dataclass(frozen=True)
class ClientLine:
    """What one entry says of a client."""

    round: int
    contribution: float
    accuracy: float
    reputation: float | None
    neurons: int | None
    took_part: int
    refused: tuple[tuple[int, str], ...]  # round, reason
    reward: str | None  # SHA-256 of the model; a sweep writes none
    head: str  # the entry's own hash


def audited(folder: Path, head: str | None = None) -> list[Entry]:
    """Return the entries of a folder's ledger, or refuse it: altered, without that head, or not ending as it did."""
    path = folder / LEDGER
    entries = verified(path, head)
    try:
        named = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["ledger"]
    except FileNotFoundError:  # the run is not finished
        return entries
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise RunError(f"{folder / SUMMARY} is damaged: it does not name the ledger's head.") from None
    if named != entries[-1]["hash"]:
        raise RunError(
            f"The ledger {path} does not end as summary.json says: its last entry, {len(entries) - 1}, is not the one "
            f"with the hash {str(named)[:100]!r}, so something after it was removed, or one of the two was rewritten."
        )
    return entries


def disagreement(entries: Sequence[Entry], history: Sequence[Record]) -> str | None:
    """Say where a history says something else than the ledger; None where they agree.

    A run that was killed between the two may have written its last round to the history only.
    """
    known = {entry["round"]: entry for entry in entries if "accuracies" in entry}
    for record in history:
        entry = known.get(record.round)
        if entry is None:
            if record is history[-1] and not record.last:
                continue
            return f"round {record.round} of the history is not in it"
        for name, own in (("accuracies", record.accuracies), ("reputation", record.reputation)):
            said = entry.get(name)
            if said != (
                own if own is None or not isinstance(said, list) else own[: len(said)]
            ):  # then who joined later
                return f"{name} of round {record.round} are others in the history"
    return None


def client_lines(entries: Sequence[Entry], client: str) -> list[ClientLine]:
    """Return what each tested round says of a client, from when it joined."""
    names: list[str] = []
    lines = []
    try:
        for entry in entries:
            names += entry.get("clients", []) + entry.get("joined", {}).get("clients", [])
            if client in names and "accuracies" in entry:
                lines.append(_line(entry, names.index(client), client))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise RunError("The ledger is whole, but was not written by this version of cofair.") from None
    if client not in names:
        raise UsageError(f"There is no client {client!r} in this ledger: {nearest(client, [str(n) for n in names])}")
    return lines


def _line(entry: Entry, i: int, client: str) -> ClientLine:
    reputation, neurons = entry.get("reputation"), entry.get("neurons")
    return ClientLine(
        round=entry["round"],
        contribution=_number(entry["contributions"][i]),
        accuracy=_number(entry["accuracies"][i]),
        reputation=None if reputation is None else _number(reputation[i]),
        neurons=None if neurons is None else _count(neurons[i]),
        took_part=_count(entry["took_part"][i]),
        refused=tuple((_count(t), _text(why)) for t, name, why in entry["refused"] if name == client),
        reward=_text(entry["rewards"][i]) if "rewards" in entry else None,
        head=entry["hash"],
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    value.encode()  # half a character cannot be shown: a ValueError
    return value


def _count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not a count")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("not a number")
    return value
