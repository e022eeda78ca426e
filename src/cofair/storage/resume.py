"""What an earlier process left in a run folder, and whether it is the run to resume."""

import json
from pathlib import Path
from typing import Any

import cofair
from cofair.config.experiment import Experiment
from cofair.data.tables.table_file import table_digest
from cofair.errors import RunError, UsageError
from cofair.results.result import Outcome
from cofair.storage import ledger
from cofair.storage.audit import check_entries
from cofair.storage.fingerprint import difference
from cofair.storage.folder import CHECKPOINT, PREVIOUS, write_whole
from cofair.storage.reader import outcome_of, read_facts, read_records

_START_OVER = "name another folder, or delete this one to start over"
_OTHER = {
    "experiment": "another experiment",
    "federation": "another federation (its data, or their distribution, differ)",
    "model": "another initial model",
    "clients": "clients with other names",
    "contributions": "clients with other contributions",
}


def first_entry(path: Path, experiment: Experiment) -> ledger.LedgerEntry | None:
    """Return the first entry of a folder's ledger, None if no run was started there; refuse another experiment's."""
    if not (path / "experiment.toml").exists() and not (path / "ledger.jsonl").exists():
        return None
    differs = difference(_text(path / "experiment.toml"), experiment, ignore_given=True)
    if differs is not None:
        raise UsageError(f"{path} holds a run of another experiment ({differs}): {_START_OVER}.")
    if not (path / "ledger.jsonl").exists():
        if any((path / name).exists() for name in (CHECKPOINT, PREVIOUS, "history.jsonl", "summary.json")):
            raise RunError(f"{path / 'ledger.jsonl'} is missing, so its run cannot be resumed: {_START_OVER}.")
        return None
    found = ledger.read(path / "ledger.jsonl")
    if found.fault is not None:
        raise RunError(found.fault)
    if not found.entries:
        return None
    version = found.entries[0].get("version")
    if version != cofair.__version__:
        raise RunError(
            f"{path} was started by cofair {version} and cannot be resumed by cofair {cofair.__version__}, "
            f"which may compute something else: {_START_OVER}."
        )
    check_entries(path / "ledger.jsonl", found.entries)
    return found.entries[0]


def refuse_other(path: Path, there: ledger.LedgerEntry, here: ledger.LedgerEntry) -> None:
    """Refuse to resume a run that differs from this one."""
    for key, what in _OTHER.items():
        if there.get(key) != here[key]:
            raise UsageError(f"{path} holds a run of {what}: {_START_OVER}.")


def is_finished(path: Path) -> bool:
    """Return whether the run in a folder has ended."""
    try:
        return bool(json.loads((path / "summary.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return False


def holds_same_finished(path: Path, experiment: Experiment) -> bool:
    """Return whether a folder holds a finished run of exactly this experiment."""
    return is_finished(path) and _same(path, experiment)


def holds_same(path: Path, experiment: Experiment) -> bool:
    """Return whether a folder holds a run of exactly this experiment, finished or not."""
    return (path / "ledger.jsonl").exists() and _same(path, experiment)


def holds_other(path: Path, experiment: Experiment) -> bool:
    """Return whether a folder holds a run of another experiment, finished or not, which would be lost."""
    if experiment.method.unwritten():
        return False
    try:
        return difference((path / "experiment.toml").read_text(encoding="utf-8"), experiment) is not None
    except (OSError, ValueError):
        return False


def _same(path: Path, experiment: Experiment) -> bool:
    if experiment.method.unwritten():  # the file does not say; the ledger does, once contributions are measured
        return False
    try:
        return difference((path / "experiment.toml").read_text(encoding="utf-8"), experiment) is None
    except (OSError, ValueError):
        return False


def finished_outcome(path: Path, experiment: Experiment) -> Outcome | None:
    """Return what a finished run of this experiment measured, or None if there is none."""
    if not holds_same_finished(path, experiment):
        return None
    facts = read_facts(path)
    data = experiment.federation.data
    if "table_sha256" in facts and facts["table_sha256"] != table_digest(data):
        raise UsageError(f"{path} holds a run of {data} as it was before that file changed: {_START_OVER}.")
    records = read_records(path, facts)
    if not records or not records[-1].last:
        raise RunError(f"The history of {path} is damaged: its run is finished, but the last rounds are missing.")
    return outcome_of(experiment.to_dict(), facts, records)


def note_resumption(path: Path, t: int, facts: dict[str, Any]) -> None:
    """Note in run.json that the run was resumed, when and where."""
    known = read_facts(path)
    again = {"round": t, "when": facts["started"], **{key: facts[key] for key in ("versions", "device", "engine")}}
    earlier = known.get("resumed", [])
    known["resumed"] = [*(earlier if isinstance(earlier, list) else []), again]
    write_whole(path / "run.json", json.dumps(known, indent=1) + "\n")


def traffic(path: Path) -> dict[str, tuple[int, int]]:
    """Return the bytes sent to and received from each client, if a real federation counted them."""
    file = path / "traffic.json"
    if not file.exists():
        return {}
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        counted = {str(row["client"]): (int(row["bytes_down"]), int(row["bytes_up"])) for row in rows}
        if not all(0 <= number < 2**63 for both in counted.values() for number in both):
            raise ValueError("no numbers of bytes")
        return counted
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise RunError(f"{file} is damaged: delete it to count bytes from zero again.") from None


def note_clients(path: Path, clients: dict[str, list[Any]], t: int | None) -> None:
    """Note in run.json who takes part; clients not named there so far joined before round t."""
    known = read_facts(path)
    joined = {name: since for name, since in known.get("joined", {}).items() if name in clients["clients"]}
    joined |= {name: t for name in clients["clients"] if t is not None and name not in known["clients"]}
    known |= {**clients, "joined": joined}
    write_whole(path / "run.json", json.dumps(known, indent=1) + "\n")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise RunError(f"{path} is damaged.") from None
