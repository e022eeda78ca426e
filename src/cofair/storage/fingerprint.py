"""Fingerprints: two runs with the same fingerprint compute the same thing."""

import hashlib
import json
import tomllib
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

import cofair
from cofair.config.experiment import Experiment
from cofair.data.federation import Federation
from cofair.engine.problem import Problem
from cofair.errors import CofairError
from cofair.methods import Server
from cofair.models.parameters import Layout
from cofair.storage.tensor_file import raw

# a run may resume elsewhere: these decide where and how it is computed, not what
ELSEWHERE = (("run", "device"), ("run", "engine"), ("run", "checkpoint_every"))
_known = WeakIdKeyDictionary()  # digests of tensors that many runs share


def fingerprint(experiment: Experiment, problem: Problem, server: Server) -> dict[str, str]:
    """Return the version, and hashes of the settings, the federation and the initial model."""
    own = settings(experiment)
    unwritten = experiment.method.unwritten(server.contributions)
    return {
        "version": cofair.__version__,
        "experiment": _sha([own, unwritten] if unwritten else own),
        "federation": federation_digest(problem.federation),
        "model": model_digest(problem.layout, server.initial),
    }


def settings(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the settings that decide what is computed."""
    tables = experiment.to_dict()
    for table, key in ELSEWHERE:
        tables[table].pop(key, None)
    return tables


def difference(experiment_toml: str, experiment: Experiment, *, ignore_given: bool = False) -> str | None:
    """Say in which setting the experiment of a folder differs from another one; None if they are the same.

    A federation or model that was given in Python has no table in the file. `ignore_given` skips it, for callers that
    compare its hash instead.
    """
    try:
        tables = tomllib.loads(experiment_toml)
        there = settings(Experiment.from_dict(tables))
    except (ValueError, RecursionError, CofairError):
        return "its settings cannot be read"
    here = settings(experiment)
    for table in dict.fromkeys([*here, *there]):
        if ignore_given and table in ("federation", "model") and table not in tables:
            continue
        own, other = here.get(table, {}), there.get(table, {})
        for key in dict.fromkeys([*own, *other]):
            if own.get(key) != other.get(key):
                return f"{table}.{key} is {other.get(key)!r} there and {own.get(key)!r} here"
    return None


def federation_digest(federation: Federation) -> str:
    """Return a hash of all clients' data and names, of the validation set and of the test set."""
    sets = [federation.test, federation.validation]
    data = [part for one in sets for part in ([] if one is None else [one.x, one.y])]
    own = [federation.inputs, federation.rows, federation.labels, federation.sizes]
    return _sha([federation.names, federation.validation is None, *[tensor_digest(part) for part in [*own, *data]]])


def model_digest(layout: Layout, initial: Tensor) -> str:
    """Return a hash of the model's class, its parameters' names and shapes, its fixed and its initial values."""
    shapes = [[own.name, list(own.shape)] for own in layout.slices]
    fixed = {**layout.frozen, **dict(layout.prototype.named_buffers())}
    held = [[name, tensor_digest(value)] for name, value in fixed.items()]
    return _sha([type(layout.prototype).__name__, shapes, held, tensor_digest(initial)])


def tensor_digest(tensor: Tensor) -> str:
    """Return a hash of a tensor's type, shape and values; computed once per tensor, since runs share their data."""
    if tensor not in _known:
        sha = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        sha.update(raw(tensor))
        _known[tensor] = sha.hexdigest()
    return str(_known[tensor])


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
