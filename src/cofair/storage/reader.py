"""Read a run folder back, strictly: any damage is an error that names the file and the place."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cofair
from cofair.errors import RunError
from cofair.results.record import PER_CLIENT, Record, are_accuracies
from cofair.results.result import Outcome
from cofair.storage.folder import FORMAT
from cofair.storage.history import read_history

FACTS, HISTORY, SETTINGS = "run.json", "history.jsonl", "experiment.toml"
_LARGEST = 1e100  # computing with numbers further from zero would overflow
_MOST_ROUNDS = 10**7
_MAY_BE_NAN = ("reputation", "promised", "validated")  # for a client that has none


def read_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # half characters cannot be shown: a ValueError
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise RunError(f"{path} is damaged: it is not valid JSON.") from None
    return value


def read_tables(folder: Path) -> dict[str, Any]:
    """Return the tables of experiment.toml."""
    path = folder / SETTINGS
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise RunError(f"{path} is damaged: it is not valid TOML.") from None


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what run.json says, checked for its types and for one size and one contribution per client."""
    path = folder / FACTS
    facts = read_json(path)
    written = facts.get("format", 0) if isinstance(facts, dict) else 0
    if isinstance(written, int) and written > FORMAT:
        versions = facts.get("versions")
        by = versions.get("cofair") if isinstance(versions, dict) else "of a newer version"
        raise RunError(
            f"{folder} was written by cofair {by}, and cofair {cofair.__version__} cannot read it: upgrade cofair."
        )
    needed = ("clients", "samples", "contributions", "seed", "versions")
    if not isinstance(facts, dict) or any(key not in facts for key in needed):
        raise RunError(f"{path} is damaged, or was written by a version of cofair that is no longer read.")
    _check_kinds(path, facts)
    counts = {key: len(facts[key]) for key in ("clients", "samples", "contributions")}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{number} {key}" for key, number in counts.items())
        raise RunError(f"{path} is damaged: it has {found}, not one contribution and one size for each client.")
    if len(set(facts["clients"])) < len(facts["clients"]):
        raise RunError(f"{path} is damaged: two clients have the same name.")
    since = _since(facts)
    if since != sorted(since) or not set(facts.get("joined", {})) <= set(facts["clients"]):
        raise RunError(f"{path} is damaged: clients that joined later must come last, in the order in which they came.")
    return facts


def read_records(folder: Path, facts: Mapping[str, Any]) -> list[Record]:
    """Return a history with as many numbers in each line as there were clients in its round."""
    path = folder / HISTORY
    if not path.exists():
        return []
    records, since = read_history(path), _since(facts)
    neurons: dict[int, int] = {}  # length of an allocation: the first round that has it
    for number, record in enumerate(records, start=1):
        where = f"Line {number} of the history {path} is damaged: round {record.round}"
        if not 0 < record.round <= _MOST_ROUNDS:
            raise RunError(f"{where} does not exist.")
        clients = sum(joined <= record.round for joined in since)
        for name in PER_CLIENT:
            values = getattr(record, name)
            if values is None:
                continue
            if len(values) != clients:
                raise RunError(f"{where} has {len(values)} {name}, but run.json says that it had {clients} clients.")
            if not all(is_number(value, nan=name in _MAY_BE_NAN) for value in values):
                raise RunError(f"{where} has {name} that are not numbers.")
        _check_held(where, record, clients)
        if not all(is_number(value) for value in (record.seconds, record.fairness or 0.0, *(record.allocation or ()))):
            raise RunError(f"{where} has seconds, a fairness or an allocation that is not a number.")
        if record.allocation is not None:
            neurons.setdefault(len(record.allocation), record.round)
            if len(neurons) > 1 or not record.allocation:
                first, own = next(iter(neurons)), len(record.allocation)
                raise RunError(
                    f"{where} has an allocation of {own} neurons, and round {neurons[first]} one of {first}."
                )
    return records


def _check_held(where: str, record: Record, clients: int) -> None:
    """Refuse a choice that is none of what a client chose among, or anything that not all clients have."""
    if (record.held, record.held_parts, record.held_as) == (None, None, None):
        return
    held, parts, chosen = record.held or [], record.held_parts or {}, record.held_as or []
    if any(len(own) != clients or not all(map(is_number, own)) for own in (held, *parts.values())):
        raise RunError(f"{where} does not say of each of {clients} clients what it holds.")
    if [parts.get(name, [math.nan] * clients)[i] for i, name in enumerate(chosen[:clients])] != held:
        raise RunError(f"{where} has clients that hold nothing of what they chose among.")


def outcome_of(tables: Mapping[str, Any], facts: Mapping[str, Any], records: Sequence[Record]) -> Outcome:
    """Return what a run with these settings measured; clients that joined after its last test are not in it yet."""
    there = sum(joined <= records[-1].round for joined in _since(facts))
    return Outcome(
        method=str(tables.get("method", {}).get("name", facts.get("method", "method"))),
        seed=int(facts["seed"]),
        names=tuple(facts["clients"][:there]),
        sizes=tuple(facts["samples"][:there]),
        contributions=tuple(map(float, facts["contributions"][:there])),
        history=tuple(records),
        contributions_are_accuracies=are_accuracies(
            tables.get("contribution", {}).get("measure"), facts.get("given", [])
        ),
    )


def _since(facts: Mapping[str, Any]) -> list[int]:
    """Return the first round of each client; 0 for those there from the start."""
    joined = facts.get("joined", {})
    return [joined.get(name, 0) for name in facts["clients"]]


def _check_kinds(path: Path, facts: Mapping[str, Any]) -> None:
    """Refuse facts of the wrong type."""
    fits = {
        "clients": _texts(facts["clients"]) and bool(facts["clients"]),
        "samples": isinstance(facts["samples"], list) and all(_whole(value) for value in facts["samples"]),
        "contributions": isinstance(facts["contributions"], list) and all(map(is_number, facts["contributions"])),
        "versions": isinstance(facts["versions"], dict),
        "seed": isinstance(facts["seed"], int) and not isinstance(facts["seed"], bool),
        "given": _texts(facts.get("given", [])),
        "notes": _texts(facts.get("notes", [])),
        "attackers": _texts(facts.get("attackers", [])),
    }
    fits |= {key: _whole(facts.get(key, 0)) for key in ("parameters", "validation_samples", "test_samples")}
    for key, does in fits.items():
        if not does:
            raise RunError(f"{path} is damaged: its {key.replace('_', ' ')} {_are(key)} of the wrong type or size.")
    joined = facts.get("joined", {})
    if not isinstance(joined, dict) or not all(_whole(since) for since in joined.values()):
        raise RunError(f"{path} is damaged: it does not say when clients joined.")


def _are(key: str) -> str:
    return "is" if key == "seed" else "are"


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18


def is_number(value: Any, *, nan: bool = False) -> bool:
    """Return whether a value read from JSON is a number that can be computed with."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return nan if value != value else abs(value) <= (_LARGEST if isinstance(value, float) else 2**63 - 1)
