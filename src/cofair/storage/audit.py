"""Check a run's ledger: is it whole, does it end as the summary says, and what does it say about a client?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cofair.errors import RunError, UsageError, nearest
from cofair.storage.ledger import LedgerEntry, verified_entries
from cofair.storage.ledger_entries import PER_CLIENT
from cofair.storage.reader import is_number

LEDGER, SUMMARY = "ledger.jsonl", "summary.json"


@dataclass(frozen=True)
class ClientLine:
    """What one entry says about a client."""

    round: int
    samples: int | None  # None where the ledger does not say
    contribution: float
    accuracy: float
    reputation: float | None
    neurons: int | None
    download: float | None
    took_part: int
    refused: tuple[tuple[int, str], ...]  # round, reason
    reward: str | None  # SHA-256 of the model; a sweep writes none
    head: str  # the entry's own hash


def checked_entries(folder: Path, head: str | None = None) -> list[LedgerEntry]:
    """Return the entries of a folder's ledger; refuse one that was altered, lacks `head`, or ends differently."""
    path = folder / LEDGER
    if not path.exists() and has_ledger(folder):
        raise RunError(f"The ledger {path} is missing: {SUMMARY} names the head that it had.")
    entries = verified_entries(path, head)
    check_entries(path, entries)
    if not (folder / SUMMARY).exists():  # the run is not finished
        return entries
    named = _named_head(folder)
    if named is None:
        raise RunError(f"{folder / SUMMARY} is damaged: it does not name the ledger's head.")
    if named != entries[-1]["hash"]:
        raise RunError(
            f"The ledger {path} does not end as summary.json says: its last entry, {len(entries) - 1}, is not the one "
            f"with the hash {named[:100]!r}, so entries at its end were removed, or one of the two files was rewritten."
        )
    return entries


def has_ledger(folder: Path) -> bool:
    """Return whether a run has a ledger, or had one: a finished run names its head."""
    return (folder / LEDGER).exists() or _named_head(folder) is not None


def _named_head(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["ledger"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def check_entries(path: Path, entries: Sequence[LedgerEntry]) -> None:
    """Refuse a ledger, even a whole one, in which a list does not have one value per client of its round."""
    names: list[str] = []
    latest = 0
    for number, entry in enumerate(entries):
        where = f"Entry {number} of the ledger {path}"
        new = entry.get("joined") if number else entry
        if new is not None:
            _check_newcomers(where, new, names)
        if not number or "accuracies" not in entry:
            continue
        if entry["round"] <= latest:
            raise RunError(f"{where} is out of place: tested rounds must increase.")
        latest = entry["round"]
        for name in PER_CLIENT:
            values = entry.get(name, [None] * len(names))
            if not isinstance(values, list) or len(values) != len(names):
                found = len(values) if isinstance(values, list) else "no list of"
                raise RunError(f"{where} is damaged: it has {found} {name} for {len(names)} clients.")
        refused = entry.get("refused", [])
        if not isinstance(refused, list) or not all(isinstance(item, list) and len(item) == 3 for item in refused):
            raise RunError(f"{where} is damaged: it does not say who was refused, when and why.")


def _check_newcomers(where: str, new: Any, names: list[str]) -> None:
    """Refuse newcomers without a name, a size or a contribution of their own; otherwise add their names."""
    own = new if isinstance(new, dict) else {}
    clients, brought = own.get("clients"), own.get("contributions")
    if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
        raise RunError(f"{where} is damaged: it does not say who takes part.")
    if not isinstance(brought, list) or not all(map(is_number, brought)):
        raise RunError(f"{where} is damaged: it does not say what every client brings.")
    for name, values in (("contributions", brought), ("samples", own.get("samples", clients))):
        if not isinstance(values, list) or len(values) != len(clients):
            found = len(values) if isinstance(values, list) else "no list of"
            raise RunError(f"{where} is damaged: it has {found} {name} for {len(clients)} clients.")
    names += clients
    if len(set(names)) < len(names) or not names:
        raise RunError(f"{where} is damaged: its clients do not have distinct names.")


def client_lines(entries: Sequence[LedgerEntry], client: str) -> list[ClientLine]:
    """Return what each tested round since a client joined says about it."""
    names: list[str] = []
    sizes: list[int | None] = []
    lines = []
    try:
        for entry in entries:
            new = entry.get("joined", entry if entry is entries[0] else {})
            own = new.get("clients", [])
            names, sizes = names + own, sizes + new.get("samples", [None] * len(own))
            if client in names and "accuracies" in entry:
                i = names.index(client)
                lines.append(_line(entry, i, client, sizes[i]))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise RunError("The ledger is whole, but it was not written by this version of cofair.") from None
    if client not in names:
        raise UsageError(f"There is no client {client!r} in this ledger: {nearest(client, [str(n) for n in names])}")
    return lines


def _line(entry: LedgerEntry, i: int, client: str, samples: int | None) -> ClientLine:
    reputation, neurons, download = (entry.get(name) for name in ("reputation", "neurons", "download"))
    return ClientLine(
        round=entry["round"],
        samples=None if samples is None else _count(samples),
        contribution=_number(entry["contributions"][i]),
        accuracy=_number(entry["accuracies"][i]),
        reputation=None if reputation is None else _number(reputation[i]),
        neurons=None if neurons is None else _count(neurons[i]),
        download=None if download is None else _number(download[i]),
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
