"""One participant's own training: the same engines and batches as in simulation, on a federation of one client."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.data.federation import Arrays, Federation
from cofair.engine.losses import Loss
from cofair.engine.phases import Phase
from cofair.engine.problem import Engine, Problem
from cofair.engine.protocol import ClientStates, Rewards, Uploads
from cofair.engine.work import Work
from cofair.errors import UsageError
from cofair.flower.wire import RefusedError
from cofair.runs.setup import Model, Parts, set_up
from cofair.settings import typed


@dataclass(frozen=True)
class Local:
    """A participant with its data and its copy of the model, ready to train."""

    problem: Problem
    engine: Engine
    model: str  # fingerprint of the model, which both sides compare

    @classmethod
    def of(
        cls, experiment: Experiment, name: str, data: Arrays, classes: int | None, model: Model | None,
        loss: Loss | None = None,
    ) -> "Local":  # fmt: skip
        """Prepare the client of that name to train on its data (inputs, labels)."""
        x, y = (torch.as_tensor(part) for part in data)
        shown = torch.arange(2).clamp(max=len(x) - 1)  # two samples to try the model on
        labels = torch.tensor([0, 1]) if classes is not None else y[shown]
        federation = Federation([(x, y)], test=(x[shown], labels), names=[name], classes=classes)
        own = Experiment(model=experiment.model, training=experiment.training, run=experiment.run)
        ready = set_up(own, Parts(federation, model, loss, _not_judged), methods=[])
        return cls(ready.problem, ready.engine, fingerprint(ready.problem))

    def train(self, rewards: Rewards, states: ClientStates, t: int) -> tuple[Uploads, ClientStates]:
        """Train on what was received."""
        return self.engine.train(rewards, states, t)

    def parameter_mask(self, neuron_mask: Tensor | None) -> Tensor | None:
        """Return the entries (D,) that a neuron mask (K,) keeps; None for all."""
        if neuron_mask is None:
            return None
        if self.problem.neurons is None or len(neuron_mask) != self.problem.neurons.count:
            raise RefusedError("the neurons of the model here are not those of the server")
        return self.problem.neurons.parameter_mask(neuron_mask[None])[0]


def _not_judged(outputs: Tensor, targets: Tensor) -> float:
    """Stand for the metric: a participant judges no model, and its few samples might not even define one."""
    return 0.0


def fingerprint(problem: Problem) -> str:
    """Return a hash of what must agree for rows to mean the same: tensors, neurons, and everything frozen."""
    layout, neurons = problem.layout, problem.neurons
    shapes = [[own.name, list(own.shape)] for own in layout.slices]
    digest = hashlib.blake2b(json.dumps([shapes, str(layout.dtype)]).encode(), digest_size=8)
    if neurons is not None:
        every_third = torch.arange(neurons.count)[None].to(problem.device) % 3 > 0
        digest.update(neurons.parameter_mask(every_third).cpu().numpy().tobytes())
    constant: Mapping[str, Tensor] = {**layout.frozen, **dict(layout.prototype.named_buffers())}
    for name in sorted(constant):
        digest.update(name.encode())
        digest.update(constant[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def memory_of(rewards: Rewards) -> str:
    """Return what a training does with the memory of the client's optimiser: keep, read or none."""
    if rewards.work.phase.alone:  # it starts without memory and leaves none
        return "none"
    return "keep" if rewards.keeps_memory else "read"


def work_text(work: Work) -> str:
    """Return work as JSON, as it is sent."""
    return json.dumps(asdict(work))


def read_work(text: str) -> Work:
    """Return the work that was sent; every field must be there with the right type, and no other."""
    try:
        values = _fields(json.loads(text), Work)
        phase = Phase(**typed(Phase, _fields(values.pop("phase"), Phase), "phase"))
        return Work(**typed(Work, values, "work"), phase=phase)
    except (ValueError, RecursionError, UsageError) as error:
        reason = str(error).rstrip(".")
        raise RefusedError(f"the work asked for cannot be read here, install the same versions: {reason}") from None


def _fields(values: Any, kind: type) -> dict[str, Any]:
    """Return values by name; the names must be exactly the fields of a dataclass."""
    if not isinstance(values, dict) or values.keys() != {field.name for field in fields(kind)}:
        raise ValueError(f"these are not the fields of a {kind.__name__}")
    return dict(values)
