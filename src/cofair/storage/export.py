"""A client's reward as files that need no cofair: its tensors, and a program that PyTorch runs by itself."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import cofair
from cofair.errors import RunError, UsageError, nearest
from cofair.results.result import Outcome, Result
from cofair.storage.folder import explaining_write_errors

TENSORS, PROGRAM = ".safetensors", ".pt2"


def export_reward(result: Result, client: str | int, path: str | Path) -> tuple[Path, Path]:
    """Write a client's reward from a run in memory; return where it is."""
    i = client_index(client, result.names)
    return export(result.rewards[i], result.rewards.inputs, Path(path), facts_about(result, i))


def facts_about(outcome: Outcome, i: int) -> dict[str, str]:
    """Return what is written beside a client's tensors."""
    last = outcome.history[-1]
    return {
        "cofair": cofair.__version__, "method": outcome.method, "seed": str(outcome.seed), "client": outcome.names[i],
        "round": str(last.round), "test_accuracy": f"{last.accuracies[i]:.6g}",
    }  # fmt: skip


def export(module: nn.Module, inputs: Tensor, path: Path, facts: Mapping[str, str]) -> tuple[Path, Path]:
    """Write a module's tensors, with facts about it, and the module as a program; return where they are.

    `inputs` are examples of what the module takes: their shape is kept, no sample is.
    """
    stem = path.name.removesuffix(TENSORS).removesuffix(PROGRAM)
    tensors, program = path.with_name(stem + TENSORS), path.with_name(stem + PROGRAM)
    module, inputs = module.cpu().eval(), inputs.cpu()
    # tied weights are written under each of their names: the module that loads them may tie them or not
    state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    with explaining_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)  # an earlier one must not remain beside new tensors
        save_file(state, tensors, dict(facts))
        tensors.chmod(0o644)  # readable by others, as the program is
        torch.export.save(_program(module, inputs, tensors), program)
    return tensors, program


def client_index(client: str | int, names: Sequence[str]) -> int:
    """Return the index of a client that is given by name or by number."""
    if isinstance(client, str):
        if client not in names:
            raise UsageError(f"There is no client {client!r}: {nearest(client, names)}")
        return list(names).index(client)
    if not 0 <= client < len(names):
        raise UsageError(f"There are {len(names)} clients, 0 to {len(names) - 1}, so there is no client {client}.")
    return client


def _program(module: nn.Module, inputs: Tensor, tensors: Path) -> torch.export.ExportedProgram:
    """Return a module as a program that takes batches of any size and computes what the module does."""
    kept = f"its tensors are in {tensors}, to be loaded into a module of the same kind"
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # PyTorch's, about its own parts
            blank = torch.zeros_like(inputs)
            made = torch.export.export(module, (blank,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
            same = torch.allclose(made.module()(inputs), module(inputs), rtol=1e-4, atol=1e-5)
    except Exception as error:  # a user's module may do things that cannot be traced
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise RunError(f"PyTorch cannot make a program of this model ({reason}); {kept}.") from error
    if not same:
        raise RunError(f"PyTorch's program of this model gives other results and was not written; {kept}.")
    made.example_inputs = None
    return made
