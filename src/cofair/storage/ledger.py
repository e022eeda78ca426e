"""The ledger of a run: what was believed about each client and what it received, in a tamper-evident chain of hashes.

It has one JSON line for the start and one per tested round. `previous` is the hash of the line before, and `hash` is
the SHA-256 of the line without `hash`, as canonical JSON: with a hash, anybody can check that nothing up to it changed.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cofair.engine.protocol import Delivered
from cofair.errors import RunError, UsageError
from cofair.neurons.map import NeuronMap
from cofair.storage.folder import AppendOnly
from cofair.storage.tensor_file import raw

FIRST = "0" * 64  # `previous` of the first entry
LedgerEntry = dict[str, Any]


class Ledger:
    """Writes entries, one after another."""

    def __init__(self, file: AppendOnly) -> None:
        """Start an empty ledger."""
        self._file, self.head, self._count = file, FIRST, 0

    def add(self, content: LedgerEntry) -> None:
        """Add an entry; its hash is the new head."""
        entry = {"entry": self._count, **content, "previous": self.head}
        entry["hash"] = _hash(entry)
        self._file.append(line_of(entry))
        self.head, self._count = entry["hash"], self._count + 1

    def resume_from(self, entries: Sequence[LedgerEntry]) -> None:
        """Continue after entries that the file holds."""
        self.head, self._count = (entries[-1]["hash"] if entries else FIRST), len(entries)


@dataclass(frozen=True)
class LedgerContents:
    """The valid entries of a ledger up to the first bad one, and what is wrong with that."""

    entries: list[LedgerEntry]
    fault: str | None = None

    @property
    def head(self) -> str:
        """Return the hash of the last valid entry."""
        return str(self.entries[-1]["hash"]) if self.entries else FIRST


def read(path: Path) -> LedgerContents:
    """Read and verify a ledger; a last line cut off by an interruption is ignored."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"Cannot read the ledger {path}: {error.strerror}.") from None
    found = LedgerContents([])
    for place, line in enumerate(lines[:-1]):  # what follows the last newline was never written whole
        fault = _fault(line, place, found)
        if fault is not None:
            return LedgerContents(found.entries, f"Entry {place} of the ledger {path} {fault}.")
        found.entries.append(json.loads(line))
    return found


def verified_entries(path: Path, head: str | None = None) -> list[LedgerEntry]:
    """Return the entries of a ledger, one of which must have the hash `head`; an error names the first bad entry."""
    found = read(path)
    if found.fault is not None:
        raise RunError(found.fault)
    if not found.entries:
        raise RunError(f"The ledger {path} has no complete entry.")
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head.strip().lower()):
        raise UsageError(f"The head of a ledger is a hash of 64 hexadecimal digits, which {head!r} is not.")
    if head is not None and head.strip().lower() not in {entry["hash"] for entry in found.entries}:
        raise RunError(
            f"The ledger {path} was cut off or rewritten: none of its {len(found.entries)} entries "
            f"(0 to {len(found.entries) - 1}) has the hash {head}."
        )
    return found.entries


def _fault(line: bytes, place: int, before: LedgerContents) -> str | None:
    """Return what is wrong with a line, or None."""
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict) or line_of(entry).encode() != line or entry["hash"] != _hash(entry):
            return "was altered"
        number, previous = entry["entry"], entry["previous"]
    except (ValueError, KeyError, RecursionError):
        return "was altered"
    if type(entry.get("round")) is not int:
        return "names no round"
    if number == place and previous == before.head:
        return None
    if number == place:
        return "does not follow the one before it: one of the two was replaced"
    if isinstance(number, int) and number > place:
        return f"is missing: entry {number} is in its place, so entries were removed or reordered"
    return f"is entry {number} again: entries were inserted or reordered"


def digests(delivered: Delivered, neurons: NeuronMap | None, clients: int) -> list[str]:
    """Return the SHA-256 of each client's reward: its parameters in order, then one byte per neuron (held or not).

    What is left out counts as zero, and zero has no sign: a client that was sent only its own part gets the same hash.
    """
    rows, masks = delivered.parameters, delivered.neuron_masks
    if masks is None and rows.dim() == 1:
        return [_digest(rows, None)] * clients
    if masks is not None and neurons is not None:
        rows = rows * neurons.parameter_mask(masks)
    rows, masks = rows.cpu(), None if masks is None else masks.cpu()
    return [_digest(rows[i], None if masks is None else masks[i]) for i in range(clients)]


def kept_digest(delivered: Delivered) -> str:
    """Return the SHA-256 of rewards as they are kept, because only the model knows which parameters masks drop.

    It covers each tensor that is not None: its name, type and shape as text, then its values.
    """
    sha = hashlib.sha256()
    for name, tensor in vars(delivered).items():
        if tensor is not None:
            sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            sha.update(raw(tensor))
    return sha.hexdigest()


def _digest(row: Tensor, mask: Tensor | None) -> str:
    sha = hashlib.sha256(raw(row + 0.0))
    if mask is not None:
        sha.update(raw(mask))
    return sha.hexdigest()


def line_of(entry: LedgerEntry) -> str:
    """Return the line of an entry as canonical JSON."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"))


def _hash(entry: LedgerEntry) -> str:
    return hashlib.sha256(line_of({key: entry[key] for key in entry if key != "hash"}).encode()).hexdigest()
