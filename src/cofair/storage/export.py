"""A client's reward as files that need no cofair: its tensors, and a program that PyTorch runs by itself."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import cofair
from cofair.config.experiment import Experiment, read_file
from cofair.data.datasets import catalogue
from cofair.engine.protocol import Delivered
from cofair.errors import RunError, UsageError, nearest
from cofair.results.result import Outcome, Result, RewardModels
from cofair.runs.setup import set_up
from cofair.storage import ledger
from cofair.storage.agreement import agreed
from cofair.storage.folder import REWARDS, explaining_write_errors
from cofair.storage.reader import read_facts
from cofair.storage.resume import finished_outcome
from cofair.storage.tensor_file import TensorFile

TENSORS, PROGRAM = ".safetensors", ".pt2"


def from_folder(folder: Path, client: str, path: Path) -> tuple[Path, Path]:
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
        raise RunError(f"The run in {folder} has not come to its end: 'cofair run' goes on with it (--resume).")
    if not (folder / REWARDS).exists():
        raise RunError(f"{folder} holds no models: 'cofair run' keeps them, comparisons and sweeps do not.")
    i = _number_of(client, outcome.names)
    entries = agreed(folder).entries
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
    facts = {**_facts_about(outcome, i), "inputs": _inputs(experiment), "sha256_in_ledger": digest}
    return export(RewardModels(delivered, problem)[i], problem.federation.test.x[:2], path, facts)


def export_reward(result: Result, client: str | int, path: str | Path) -> tuple[Path, Path]:
    """Write a client's reward of a run in memory; return where it is."""
    i = _number_of(client, result.names)
    return export(result.rewards[i], result.rewards.inputs, Path(path), _facts_about(result, i))


def _facts_about(outcome: Outcome, i: int) -> dict[str, str]:
    """Return what is written beside a client's tensors."""
    last = outcome.history[-1]
    return {
        "cofair": cofair.__version__, "method": outcome.method, "seed": str(outcome.seed), "client": outcome.names[i],
        "round": str(last.round), "test_accuracy": f"{last.accuracies[i]:.6g}",
    }  # fmt: skip


def export(module: nn.Module, inputs: Tensor, path: Path, facts: Mapping[str, str]) -> tuple[Path, Path]:
    """Write a module's tensors, with facts about it, and the module as a program; return where they are.

    `inputs` are some that the module takes: their shape is kept, and no sample is.
    """
    stem = path.name.removesuffix(TENSORS).removesuffix(PROGRAM)
    tensors, program = path.with_name(stem + TENSORS), path.with_name(stem + PROGRAM)
    module, inputs = module.cpu().eval(), inputs.cpu()
    # weights that are tied are written once a name: the module that reads them may tie them or not
    state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    with explaining_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)  # an earlier one must not stand beside new tensors
        save_file(state, tensors, dict(facts))
        tensors.chmod(0o644)  # others may read it, as they may the program
        torch.export.save(_program(module, inputs, tensors), program)
    return tensors, program


def _number_of(client: str | int, names: Sequence[str]) -> int:
    """Return the number of a client that is named, or numbered."""
    if isinstance(client, str):
        if client not in names:
            raise UsageError(f"There is no client {client!r}: {nearest(client, names)}")
        return list(names).index(client)
    if not 0 <= client < len(names):
        raise UsageError(f"There are {len(names)} clients, 0 to {len(names) - 1}, so no client {client}.")
    return client


def _program(module: nn.Module, inputs: Tensor, tensors: Path) -> torch.export.ExportedProgram:
    """Return a module as a program that takes batches of any size and computes what the module does."""
    kept = f"its tensors are in {tensors}, to be loaded into a module of the same kind"
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # PyTorch's own, about its parts
            blank = torch.zeros_like(inputs)
            made = torch.export.export(module, (blank,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
            same = torch.allclose(made.module()(inputs), module(inputs), rtol=1e-4, atol=1e-5)
    except Exception as error:  # a stranger's module may do anything that cannot be followed
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise RunError(f"PyTorch cannot make a program of this model ({reason}); {kept}.") from error
    if not same:
        raise RunError(f"PyTorch's program of this model computes something else and was not written; {kept}.")
    made.example_inputs = None
    return made


def _inputs(experiment: Experiment) -> str:
    """Say what the model takes."""
    entry = catalogue.find(experiment.federation.data)
    if entry.kind == "text":
        return f"token ids of {entry.name}: 0 is padding, 1 a word that the training sentences do not have"
    return f"images, channels first, scaled to [0, 1], less {list(entry.mean)}, divided by {list(entry.std)}"
