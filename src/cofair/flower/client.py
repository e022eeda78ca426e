"""The participant's side: a ClientApp around a model and data that stay where they are.

A participant keeps the last model that it received, so that only changes have to be sent, and forgets what that model
leaves out. After a restart it has lost the model, says so, and is sent all of it once.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.data.federation import Arrays
from cofair.engine.losses import Loss
from cofair.engine.optimisers import OPTIMISERS
from cofair.engine.problem import first_line
from cofair.engine.protocol import ClientStates, Rewards
from cofair.errors import UsageError, nearest
from cofair.flower import messages, participant_memory, wire
from cofair.flower.ask_texts import ASK_TEXTS
from cofair.flower.flower_settings import experiment_of
from cofair.flower.local_training import Local, read_work
from cofair.flower.wire import RefusedError
from cofair.runs.setup import Model, Setup, set_up

LOG = logging.getLogger("flwr.cofair")
Data = Callable[[Context], Any]  # (inputs, labels), or a data loader that yields such batches


def client_app(
    experiment: Path | Experiment, model: Model | None = None, data: Data | None = None, *,
    loss: Loss | None = None, allow: Collection[str] | None = None,
) -> ClientApp:  # fmt: skip
    """Return a ClientApp that trains `model` on what `data(context)` returns: inputs and labels, or a data loader.

    Without data, or if it returns None, the client is the one of the experiment's own federation with this node's
    `partition-id`: for trials on data that everybody has. `allow` names what may be sent besides updates (anything,
    unless the node's setting `allow` says otherwise); an experiment that asks for more is refused.
    """
    participant = Participant(experiment, model, data, loss, allow)
    app = ClientApp()
    app.query()(participant.join)
    app.train()(participant.train)
    return app


@dataclass
class Participant:
    """Answers a server's messages."""

    experiment: Path | Experiment
    model: Model | None = None
    data: Data | None = None
    loss: Loss | None = None
    allow: Collection[str] | None = None
    _ready: dict[tuple[Any, ...], Local] = field(default_factory=dict)

    def join(self, message: Message, context: Context) -> Message:
        """Send this participant's name and what was asked for, or refuse."""
        return _reply(message, lambda: self._join(message, context))

    def train(self, message: Message, context: Context) -> Message:
        """Train on the reward in a message and return the update."""
        return _reply(message, lambda: self._train(message, context))

    def _join(self, message: Message, context: Context) -> RecordDict:
        asked = messages.config_of(message)
        LOG.info("The server runs the method %r and asks for: %s", asked["method"], ", ".join(asked["asks"]))
        self._check_allowed(asked["asks"], context)
        x, y = self._samples(context)
        name, classes = _name(context), asked["classes"] or None
        answer: dict[str, messages.Plain] = {"status": "ok", "name": name, "size": len(x), "model": ""}
        if len(x):
            answer["model"] = self._local(context, (x, y), classes).model
        if "class_counts" in asked["asks"] and classes is not None:
            answer["class_counts"] = torch.bincount(torch.as_tensor(y), minlength=classes).tolist()
        return messages.content(answer)

    def _train(self, message: Message, context: Context) -> RecordDict:
        asked = messages.config_of(message)
        work, t = read_work(asked["work"]), asked["round"]
        self._check_allowed(work.statistics, context)
        if asked["ledger"]:
            LOG.info("Round %d: the ledger's head is %s.", t, asked["ledger"])
        agreed = experiment_of(self.experiment).training.batch_size
        if work.batch_size < agreed:  # an update from a batch of one can reveal the sample itself
            raise RefusedError(f"batches of {work.batch_size} are asked for, where {agreed} were agreed on")
        local = self._local(context, None, asked["classes"] or None)
        if asked["model"] != local.model:
            raise RefusedError("the model here is not the server's: install the same app and versions on both sides")
        layout = local.problem.layout
        base = participant_memory.base(
            context, asked["base"], torch.zeros(layout.size, dtype=layout.dtype, device=local.problem.device)
        )
        if base is None:
            return messages.content({"status": "lost"})
        rewards, scope, row = _read_reward(message, asked, local, base, work)
        remembered = participant_memory.optimiser(context, local.problem.device)
        uploads, states = local.train(rewards, ClientStates() if asked["memory"] == "none" else remembered, t)
        update = uploads.updates[0]
        arrays = wire.pack(update, update != 0, None if OPTIMISERS[work.optimiser].moves_masked else scope)
        arrays |= {name: values[0].reshape(-1).cpu().numpy() for name, values in uploads.statistics.items()}
        kept = states if asked["memory"] == "keep" else remembered
        participant_memory.remember(context, asked["version"], row, wire.within(update, scope), kept)
        return messages.content(
            {
                "status": "ok",
                "round": t,
                "phase": work.phase.address,
                "model": local.model,
                "version": asked["version"],
            },
            arrays,
        )

    def _local(self, context: Context, data: Arrays | None, classes: int | None) -> Local:
        key = (_name(context), context.node_id, classes)
        if key not in self._ready:  # Flower may use one process per message, or one for all of them
            own, experiment = data or self._samples(context), experiment_of(self.experiment)
            self._ready[key] = Local.of(experiment, _name(context), own, classes, self._model(context), self.loss)
        return self._ready[key]

    def _model(self, context: Context) -> Model | None:
        if self.model is not None or (self.data is not None and self.data(context) is not None):
            return self.model
        return _shared_setup(experiment_of(self.experiment)).problem.layout.prototype

    def _samples(self, context: Context) -> Arrays:
        own = None if self.data is None else self.data(context)
        if own is not None:
            return _as_arrays(own)
        federation = _shared_setup(experiment_of(self.experiment)).problem.federation
        name = _name(context)
        if name not in federation.names:
            raise UsageError(f"The experiment has no client {name!r}: {nearest(name, federation.names)}")
        own = federation.client(federation.names.index(name))
        return own.x, own.y

    def _check_allowed(self, asked: Collection[str], context: Context) -> None:
        own = context.node_config.get("allow")
        allowed = ASK_TEXTS if self.allow is None else self.allow
        if own is not None:
            allowed = str(own).replace(",", " ").split()
            if unknown := [name for name in allowed if name not in ASK_TEXTS]:
                raise UsageError(f"allow names {unknown[0]!r}: {nearest(unknown[0], ASK_TEXTS)}")
        for name in asked:
            if name not in allowed:
                raise RefusedError(f"this participant does not allow {name!r}")


def _reply(message: Message, answer: Callable[[], RecordDict]) -> Message:
    """Reply; an error is reported without its text, which could contain data or file names."""
    try:
        reply = answer()
    except RefusedError as refusal:
        LOG.error("Refused: %s.", refusal)
        reply = messages.content({"status": "refused", "reason": str(refusal)})
    except Exception as error:
        LOG.exception("Failed: %s", first_line(error))
        reply = messages.content({"status": "failed"})
    return Message(reply, reply_to=message)


def _read_reward(
    message: Message, asked: dict[str, Any], local: Local, base: Tensor, work: Any
) -> tuple[Rewards, Tensor | None, Tensor]:
    """Return the reward of a message as for a federation of one, the entries it may hold, and the row now held."""
    device, choices = local.problem.device, asked["choices"]
    K = 0 if local.problem.neurons is None else local.problem.neurons.count
    allowed = wire.expected(base.numel(), base)
    for name, count in (("neurons", K), ("step_masks", K * choices)):
        allowed[name] = wire.Expected(np.dtype(np.uint8), (count + 7) // 8)
    arrays = messages.arrays_of(message, allowed)
    neurons = wire.from_bits(arrays["neurons"], K).to(device) if "neurons" in arrays else None
    scope = local.parameter_mask(neurons)
    row = wire.unpack(arrays, wire.within(base, scope), scope)
    steps = None
    if choices:
        steps = wire.from_bits(arrays["step_masks"], K * choices).view(1, choices, K).to(device)
    rewards = Rewards(
        row[None], work, None if neurons is None else neurons[None], steps,
        torch.tensor([choices], device=device) if choices else None
    )  # fmt: skip
    return rewards, scope, row


def _name(context: Context) -> str:
    name = context.node_config.get("name", context.node_config.get("partition-id"))
    if name is None:
        raise UsageError("A participant needs a name: give it one with --node-config 'name=\"…\"'.")
    return str(name)


def _as_arrays(data: Any) -> Arrays:
    """Return inputs and labels from a pair, or from all batches of a data loader."""
    batches = [data] if isinstance(data, tuple) else list(data)
    x, y = ([torch.as_tensor(part) for part in parts] for parts in zip(*batches, strict=True))
    return torch.cat(x), torch.cat(y)


@lru_cache(maxsize=1)
def _shared_setup(experiment: Experiment) -> Setup:
    """Return the set-up of an experiment's whole federation, whose data everybody has."""
    return set_up(experiment, methods=[])
