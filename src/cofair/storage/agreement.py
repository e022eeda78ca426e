"""Compare a run folder with its ledger in both directions: nothing may be different, missing or added.

A ledger does not hold times and machines (`started`, `resumed`, `device`, `engine`, `seconds`, all versions but
cofair's own) or the bytes of traffic.json, so these are not compared.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import cofair
from cofair.engine.protocol import Delivered
from cofair.errors import CofairError, RunError
from cofair.results.record import Record
from cofair.storage import ledger, ledger_entries, reader
from cofair.storage.audit import SUMMARY, checked_entries
from cofair.storage.folder import REWARDS
from cofair.storage.ledger import LedgerEntry
from cofair.storage.reader import FACTS, HISTORY, SETTINGS
from cofair.storage.tensor_file import TensorFile

_ALWAYS = ("round", "accuracies", "reputation")  # what every ledger says about a line of the history
_CLOSE = 1e-9  # numbers of a summary are recomputed, perhaps on another machine


@dataclass(frozen=True)
class Audit:
    """The entries of a ledger, what is wrong with it or its folder (None: nothing), and remarks for the reader."""

    entries: list[LedgerEntry]
    fault: str | None = None
    remarks: tuple[str, ...] = ()


def checked_against_ledger(folder: Path, head: str | None = None) -> Audit:
    """Return the audit of a folder; refuse a ledger that does not verify and a folder that contradicts it."""
    compared = _Folder(folder, checked_entries(folder, head))
    fault = compared.fault()
    if fault is not None:
        raise RunError(f"{folder} does not say what its ledger says; {fault}.")
    return Audit(compared.entries, None, compared.remarks())


def audit_folder(folder: Path) -> Audit:
    """Return the audit of a folder; whatever is wrong is its `fault`."""
    try:
        return checked_against_ledger(folder)
    except CofairError as error:
        return Audit([], str(error))


@dataclass
class _Known:
    """The clients that a ledger names."""

    names: list[str] = field(default_factory=list)
    samples: list[int | None] = field(default_factory=list)
    contributions: list[float] = field(default_factory=list)
    joined: dict[str, int] = field(default_factory=dict)

    def with_newcomers_of(self, entry: LedgerEntry) -> "_Known":
        """Return these clients and those that an entry adds."""
        new = entry.get("joined", entry if entry["entry"] == 0 else None)
        if new is None:
            return self
        names = new["clients"]
        return _Known(
            self.names + names, self.samples + new.get("samples", [None] * len(names)),
            self.contributions + new["contributions"],
            self.joined | (dict.fromkeys(names, entry["round"] + 1) if "joined" in entry else {}),
        )  # fmt: skip


class _Folder:
    """A run folder beside its ledger."""

    def __init__(self, path: Path, entries: list[LedgerEntry]) -> None:
        self.path, self.entries = path, entries
        self._ledger_only = not any((path / name).exists() for name in (FACTS, HISTORY, SETTINGS, SUMMARY))
        self._finished = (path / SUMMARY).exists()
        self._start, self._complete = entries[0], "settings" in entries[0]  # earlier versions wrote less
        self._by_round = {entry["round"]: entry for entry in entries if "accuracies" in entry}
        self._history_rounds: set[int] = set()

    def fault(self) -> str | None:
        """Return the first difference between folder and ledger, None if there is none."""
        if self._ledger_only:
            return None
        facts = reader.read_facts(self.path)
        records = reader.read_records(self.path, facts)
        self._history_rounds = {record.round for record in records}
        parts = (
            self._clients(facts), self._facts(facts), self._settings(), self._history(records),
            self._summary(facts, records), self._rewards(),
        )  # fmt: skip
        return next((fault for part in parts for fault in part), None)

    def remarks(self) -> tuple[str, ...]:
        """Return what a reader should know about a folder without a fault."""
        if self._ledger_only:
            return ("there is nothing to compare the ledger with",)
        remarks = []
        if not self._complete:
            remarks.append("an earlier version of cofair wrote it, without sizes, settings and most of the history")
        remarks += [
            f"round {t} is only in the ledger, because the run was interrupted there"
            for t in self._by_round if t not in self._history_rounds
        ]  # fmt: skip
        if "kept" in self.entries[-1] and not (self.path / REWARDS).exists():
            remarks.append(f"{REWARDS} is no longer there")
        return tuple(remarks)

    def _clients(self, facts: dict[str, Any]) -> Iterator[str]:
        """Compare who takes part, since when, and with what."""
        known = _Known()
        for entry in self.entries:
            before, known = known, known.with_newcomers_of(entry)
        if not self._finished and len(facts["clients"]) == len(before.names) < len(known.names):
            known = before  # the run was interrupted between writing the two files
        if len(facts["clients"]) != len(known.names):
            yield f"{FACTS} names {len(facts['clients'])} clients, but the ledger names {len(known.names)}"
        for i, name in enumerate(known.names):
            if facts["clients"][i] != name:
                yield _differs(f"name of client {i}", facts["clients"][i], name, FACTS)
            if known.samples[i] is not None and facts["samples"][i] != known.samples[i]:
                yield _differs(f"samples of client {name!r}", facts["samples"][i], known.samples[i], FACTS)
            if facts["contributions"][i] != known.contributions[i]:
                own = facts["contributions"][i]
                yield _differs(f"contribution of client {name!r}", own, known.contributions[i], FACTS)
        if (joined := facts.get("joined", {})) != known.joined:
            yield _differs("who joined, and when", joined, known.joined, FACTS)

    def _facts(self, facts: dict[str, Any]) -> Iterator[str]:
        """Compare what a report says about the run apart from its clients."""
        if (version := facts["versions"].get("cofair")) != self._start.get("version"):
            yield _differs("version of cofair", version, self._start.get("version"), FACTS)
        there = self._start.get("facts", {}) if self._complete else facts
        for key in ledger_entries.FACTS:
            if _text(facts.get(key)) != _text(there.get(key)):
                yield _differs(key, facts.get(key), there.get(key), FACTS)

    def _settings(self) -> Iterator[str]:
        here = reader.read_tables(self.path)
        there = self._start["settings"] if self._complete else here
        for table in {**there, **here}:
            own, other = here.get(table), there.get(table)
            if not isinstance(own, dict) or not isinstance(other, dict):
                own, other = {"": own}, {"": other}
            for key in {**other, **own}:
                if _text(own.get(key)) != _text(other.get(key)):
                    yield _differs(f"{table}.{key}".rstrip("."), own.get(key), other.get(key), SETTINGS)

    def _history(self, records: Sequence[Record]) -> Iterator[str]:
        """Compare every line with its entry, and find lines and entries without a counterpart."""
        resume = "" if self._finished else " (the run is not finished: --resume rewrites what a killed process left)"
        known = _Known()
        brought = {}
        for entry in self.entries:
            known = known.with_newcomers_of(entry)
            if "accuracies" in entry:
                brought[entry["round"]] = known
        for record in records:
            if record.round in self._by_round:
                yield from self._round(record, self._by_round[record.round], brought[record.round])
            elif (
                self._complete or self._finished or record is not records[-1]
            ):  # earlier versions wrote the history first
                yield f"round {record.round} of {HISTORY} is not in the ledger{resume}"
        missing = sorted(set(self._by_round) - self._history_rounds)
        if missing and (self._finished or missing != [max(self._by_round)]):  # the ledger is written first
            yield f"round {missing[0]} of the ledger is missing from {HISTORY}{resume}"

    def _round(self, record: Record, entry: LedgerEntry, known: _Known) -> Iterator[str]:
        where = f"{HISTORY}, round {record.round}"
        own = ledger_entries.of_record(record)
        for key in ledger_entries.OF_RECORD if self._complete else _ALWAYS:
            if _text(own.get(key)) != _text(entry.get(key)):
                yield _differs(*_place(key, getattr(record, key), entry.get(key), known.names), where)
        brings = known.contributions if record.contributions is None else record.contributions
        if _text(brings) != _text(entry.get("contributions")):
            yield _differs(*_place("contributions", brings, entry.get("contributions"), known.names), where)
        refused = {name: why for _, name, why in entry.get("refused", [])}
        if (record.refused or {}) != refused:
            yield _differs("who was refused, and why", record.refused or {}, refused, where)

    def _summary(self, facts: dict[str, Any], records: Sequence[Record]) -> Iterator[str]:
        """Compare a summary with what follows from the other files, which have been compared already."""
        if not self._finished:
            return
        summary, tables = reader.read_json(self.path / SUMMARY), reader.read_tables(self.path)
        if not records or not all(isinstance(tables.get(name), dict) for name in ("method", "contribution")):
            yield f"{SUMMARY} belongs to a run without a tested round or a method"
            return
        computed = reader.outcome_of(tables, facts, records).summary()
        if self._start.get("version") != cofair.__version__:  # another version may compute these differently
            del computed["cells"], computed["fairness_interval"]
            computed["clients"] = _without_accuracy(computed["clients"])
            summary = {**summary, "clients": _without_accuracy(summary.get("clients"))}
        for key, value in computed.items():
            place = _first_difference(json.loads(json.dumps(value)), summary.get(key), key)
            if place is not None:
                yield f"{place} in {SUMMARY} is not what follows from {HISTORY} and the ledger"

    def _rewards(self) -> Iterator[str]:
        """Compare the kept models with the hashes of the last round."""
        last, path = self.entries[-1], self.path / REWARDS
        if not path.exists() or not (self._finished or "kept" in last):
            return  # a resumed run may still have models that were written before it was interrupted
        delivered: Delivered = TensorFile(path).value(Delivered, torch.device("cpu"))
        if "kept" in last:
            same = ledger.kept_digest(delivered) == last["kept"]
        elif delivered.neuron_masks is None and "rewards" in last:
            rows = delivered.parameters
            same = rows.dim() == 1 or len(rows) == len(last["rewards"])
            same = same and ledger.digests(delivered, None, len(last["rewards"])) == last["rewards"]
        else:
            same = not self._complete  # only the model knows which neurons own which parameters
        if not same:
            yield f"the models in {REWARDS} are not those whose hashes the ledger has"


def _differs(what: str, here: Any, there: Any, where: str) -> str:
    return f"{what}: {_short(here)} in {where}, but {_short(there)} in the ledger"


def _place(key: str, here: Any, there: Any, names: Sequence[str]) -> tuple[str, Any, Any]:
    """Return what differs between two per-client lists, and for which client; other values are returned whole."""
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there) == len(names):
        for name, own, other in zip(names, here, there, strict=True):
            if _text(own) != _text(other):
                return f"{key} of client {name!r}", own, other
    return key, here, there


def _first_difference(computed: Any, written: Any, place: str) -> str | None:
    """Return where two JSON values differ by more than rounding, None if they do not."""
    if isinstance(computed, dict) and isinstance(written, dict):
        found = (
            _first_difference(computed.get(key), written.get(key), f"{place}.{key}") for key in {**computed, **written}
        )
        return next((where for where in found if where is not None), None)
    if isinstance(computed, list) and isinstance(written, list) and len(computed) == len(written):
        found = (
            _first_difference(a, b, f"{place}[{k}]") for k, (a, b) in enumerate(zip(computed, written, strict=True))
        )
        return next((where for where in found if where is not None), None)
    if isinstance(computed, float) and isinstance(written, int | float) and not isinstance(written, bool):
        close = math.isclose(computed, written, rel_tol=_CLOSE, abs_tol=_CLOSE)
        return None if close or (computed != computed and written != written) else place
    return None if _text(computed) == _text(written) else place


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)  # TOML has dates


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    text = text.encode(errors="replace").decode()  # half a character cannot be shown
    return text if len(text) <= 80 else f"{text[:80]}…"


def _without_accuracy(clients: Any) -> Any:
    """Return the clients of a summary without what they got, which one rule or another has read."""
    if not isinstance(clients, list) or not all(isinstance(one, dict) for one in clients):
        return clients
    return [{key: value for key, value in one.items() if key != "accuracy"} for one in clients]
