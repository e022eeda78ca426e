"""A client's reward from the folder of a finished run, as files that need no cofair."""

from pathlib import Path

import torch

from cofair.config.experiment import Experiment, read_file
from cofair.data.datasets import catalogue
from cofair.data.federation import Federation
from cofair.engine.protocol import Delivered
from cofair.errors import RunError, UsageError
from cofair.results.result import RewardModels
from cofair.runs.setup import set_up
from cofair.storage import ledger
from cofair.storage.agreement import checked_against_ledger
from cofair.storage.export import client_index, export, facts_about
from cofair.storage.folder import REWARDS
from cofair.storage.reader import read_facts
from cofair.storage.resume import finished_outcome
from cofair.storage.tensor_file import TensorFile


def export_from_folder(folder: Path, client: str, path: Path) -> tuple[Path, Path]:
    """Write the reward of a client of a finished run, whose data set and model have a name; return where it is."""
    given = read_facts(folder).get("given", [])
    if "model" in given or "federation" in given:
        raise UsageError(
            f"The run in {folder} was of a model or of data of one's own, which no folder holds: result.export(client, "
            "path) writes its rewards in Python."
        )
    experiment = Experiment.from_dict(read_file(folder / "experiment.toml"))
    outcome = finished_outcome(folder, experiment)
    if outcome is None:
        raise RunError(f"The run in {folder} is not finished: 'cofair run --resume' continues it.")
    if not (folder / REWARDS).exists():
        raise RunError(f"{folder} holds no models: 'cofair run' and 'cofair compare --keep-models' keep them.")
    i = client_index(client, outcome.names)
    entries = checked_against_ledger(folder).entries
    problem = set_up(experiment.with_run(device="cpu")).problem
    delivered = TensorFile(folder / REWARDS).value(Delivered, torch.device("cpu"))
    if delivered.parameters.shape[-1] != problem.layout.size:
        raise RunError(f"{folder / REWARDS} holds models of another kind than {folder / 'experiment.toml'} says.")
    digest = ledger.digests(delivered, problem.neurons, len(outcome.names))[i]
    hashes = entries[-1].get("rewards")
    if hashes is None or hashes[i] != digest:
        raise RunError(
            f"The reward of client {client!r} in {folder / REWARDS} is not the one whose hash the ledger has."
        )
    facts = {**facts_about(outcome, i), "inputs": _inputs(experiment, problem.federation), "sha256_in_ledger": digest}
    return export(RewardModels(delivered, problem)[i], problem.federation.test.x[:2], path, facts)


def _inputs(experiment: Experiment, federation: Federation) -> str:
    """Say what the model takes."""
    if federation.encoding is not None:
        return federation.encoding.describe()
    entry = catalogue.find(experiment.federation.data)
    if entry.kind == "text":
        return f"token ids of {entry.name}: 0 is padding, 1 a word that the training sentences do not have"
    return f"images, channels first, scaled to [0, 1], less {list(entry.mean)}, divided by {list(entry.std)}"
