"""What the entries of a ledger say: enough to check everything that a report or a statement shows.

They leave out times and machines (seconds, when and where a run was computed): a run that resumes elsewhere or later
writes the same ledger.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from typing import Any

from cofair.config.experiment import Experiment
from cofair.engine.problem import Problem
from cofair.methods import Server
from cofair.results.record import Record
from cofair.results.tested_round import TestedRound
from cofair.storage import ledger
from cofair.storage.fingerprint import fingerprint
from cofair.storage.ledger import LedgerEntry

# keys of run.json that a report shows, apart from the clients
FACTS = ("given", "model", "seed", "parameters", "validation_samples", "test_samples", "notes", "attackers")
CHAIN = ("entry", "previous", "hash")  # keys that every entry of a ledger has
# lists with one value per client
PER_CLIENT = (
    "contributions", "accuracies", "validation", "reputation", "neurons", "rewards", "download", "promised",
    "validated", "took_part", "held", "held_as",
)  # fmt: skip
_COPIED = (
    "round", "fairness", "accuracies", "validation", "reputation", "download", "promised", "validated", "held",
    "held_parts", "held_as",
)  # fmt: skip
OF_RECORD = (*_COPIED, "allocation", "last")  # keys that `of_record` may return


def client_facts(server: Server, first: int = 0) -> dict[str, list[Any]]:
    """Return names, sizes and contributions of the clients, starting with number `first`."""
    return {
        "clients": list(server.names[first:]), "samples": server.sizes[first:].tolist(),
        "contributions": server.contributions[first:].tolist(),
    }  # fmt: skip


def of_start(
    experiment: Experiment, problem: Problem, server: Server, experiment_toml: str, facts: Mapping[str, Any]
) -> LedgerEntry:
    """Return what the first entry says: the run's fingerprint, and which client brings what."""
    return {
        "round": 0, **fingerprint(experiment, problem, server), **client_facts(server),
        "settings": tomllib.loads(experiment_toml),
        "facts": {key: facts[key] for key in FACTS if key in facts},
    }  # fmt: skip


def of_record(record: Record) -> LedgerEntry:
    """Return what an entry says about a line of the history: all but its seconds, contributions and refusals."""
    entry = {name: getattr(record, name) for name in _COPIED}
    entry |= {"allocation": list_digest(record.allocation), "last": record.last or None}
    return {key: value for key, value in entry.items() if value is not None}


def of_round(tested: TestedRound, *, hashes_rewards: bool, keeps_rewards: bool) -> LedgerEntry:
    """Return what the entry of a tested round says; models that will be kept get a hash of their own."""
    delivered, masks = tested.delivered, tested.delivered.neuron_masks
    entry = {
        **of_record(tested.record),
        "contributions": tested.contributions.tolist(),
        "neurons": None if masks is None else masks.sum(1).tolist(),
        "rewards": ledger.digests(delivered, tested.neurons, len(tested.names)) if hashes_rewards else None,
        "kept": ledger.kept_digest(delivered) if keeps_rewards and tested.record.last else None,
        "took_part": tested.took_part,
        "refused": [[t, tested.names[client], why] for t, client, why in tested.refused],
    }
    return {key: value for key, value in entry.items() if value is not None}


def list_digest(values: list[float] | None) -> str | None:
    """Return a hash that replaces a long list."""
    return None if values is None else hashlib.sha256(json.dumps(values, separators=(",", ":")).encode()).hexdigest()
