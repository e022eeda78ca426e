"""What the entries of a ledger say: enough to check all that a report or a statement shows.

Left out are times and machines (seconds, when and where a run was computed): a run that goes on elsewhere, or later,
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
from cofair.storage.ledger import Entry

# of run.json: what a report says of a run beside its clients
FACTS = ("given", "model", "seed", "parameters", "validation_samples", "test_samples", "notes", "attackers")
CHAIN = ("entry", "previous", "hash")  # what an entry has because it stands in a ledger
# lists with one value a client
PER_CLIENT = (
    "contributions", "accuracies", "validation", "reputation", "neurons", "rewards", "download", "promised",
    "validated", "took_part",
)  # fmt: skip
_AS_THEY_ARE = ("round", "fairness", "accuracies", "validation", "reputation", "download", "promised", "validated")
OF_RECORD = (*_AS_THEY_ARE, "allocation", "last")  # what `of_record` says


def known_of(server: Server, first: int = 0) -> dict[str, list[Any]]:
    """Return names, sizes and contributions of the clients from a first one on."""
    return {
        "clients": list(server.names[first:]), "samples": server.sizes[first:].tolist(),
        "contributions": server.contributions[first:].tolist(),
    }  # fmt: skip


def of_start(
    experiment: Experiment, problem: Problem, server: Server, experiment_toml: str, facts: Mapping[str, Any]
) -> Entry:
    """Return what the first entry says: what the run is a run of, and who brings what."""
    return {
        "round": 0, **fingerprint(experiment, problem, server), **known_of(server),
        "settings": tomllib.loads(experiment_toml),
        "facts": {key: facts[key] for key in FACTS if key in facts},
    }  # fmt: skip


def of_record(record: Record) -> Entry:
    """Return what an entry says of a line of the history: all of it but the seconds, contributions and refusals."""
    entry = {name: getattr(record, name) for name in _AS_THEY_ARE}
    entry |= {"allocation": list_digest(record.allocation), "last": record.last or None}
    return {key: value for key, value in entry.items() if value is not None}


def of_round(tested: TestedRound, *, hashes_rewards: bool, keeps_rewards: bool) -> Entry:
    """Return what the entry of a tested round says; models that will be kept have a hash of their own."""
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
    """Return a hash in the place of a long list."""
    return None if values is None else hashlib.sha256(json.dumps(values, separators=(",", ":")).encode()).hexdigest()
