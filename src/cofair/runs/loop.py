"""The one loop: rewards out, local training, uploads in."""

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cofair import metrics
from cofair.engine.exchange import ClientStates, Delivered, Rewards
from cofair.engine.scoring import Scorer
from cofair.errors import RunError
from cofair.methods import Method
from cofair.methods.method import Server
from cofair.runs.history import Record
from cofair.runs.prepare import Prepared

ALLOCATION_GROUPS = 512  # a history names at most so many neurons, or groups of neighbours


def rounds(method: Method[Any], prepared: Prepared) -> Iterator[tuple[Record, Delivered]]:
    """Run a method and yield, for each round that is tested, what was measured and the models delivered."""
    server, began = prepared.server, time.perf_counter()
    state, clients = method.start(server), ClientStates()
    downloaded = torch.zeros(server.clients, dtype=torch.float64)
    held: list[Tensor] = []
    last = method.rounds(server)
    for t in range(1, last + 1):
        for phase in method.phases(server, t):
            rewards = method.rewards(server, state, t, phase)
            uploads, trained = prepared.engine.train(rewards, clients, t)
            clients = trained if rewards.keeps_memory else clients
            state = method.learn(server, state, rewards, uploads, t, phase)
            downloaded += _download(server, rewards)
            if rewards.neuron_masks is not None:
                held.append(_share_of_holders(rewards.neuron_masks, rewards.participants))
        if server.evaluates(t) or t == last:
            delivered = method.delivered(server, state)
            reputation = method.reputation(state)
            accuracies = _tested(prepared.tester, delivered, server.clients, t)
            record = Record(
                round=t,
                fairness=metrics.fairness(server.contributions, accuracies),
                accuracies=accuracies,
                validation=(
                    _tested(server.validation, delivered, server.clients, t) if prepared.experiment.run.joint else None
                ),
                reputation=None if reputation is None else _list(reputation),
                download=_list(downloaded / t),
                seconds=time.perf_counter() - began,
                last=t == last,
                allocation=_allocation(held),
            )
            held.clear()
            yield record, delivered


def _tested(scorer: Scorer, delivered: Delivered, clients: int, t: int) -> list[float]:
    """Return the accuracy of every client's reward."""
    scores = scorer.score(delivered.parameters, delivered.neuron_masks)
    if not bool(torch.isfinite(scores.loss).all()):
        which = "" if len(scores.loss) == 1 else f" (client {int((~torch.isfinite(scores.loss)).nonzero()[0])} first)"
        raise RunError(
            f"Training diverged by round {t}: a reward gives losses that are not finite{which}; "
            "lower training.lr or set training.clip."
        )
    return _list(scores.metric.expand(clients))


def _download(server: Server, rewards: Rewards) -> Tensor:
    """Return the share of a whole model that travels to each client."""
    if rewards.download is not None:
        return rewards.download.to("cpu", torch.float64)
    share = torch.ones(server.clients, dtype=torch.float64)
    if rewards.neuron_masks is not None and server.neurons is not None:
        share = server.neurons.parameter_mask(rewards.neuron_masks).double().mean(1).cpu()
    if rewards.participants is not None:
        share = share * rewards.participants.cpu()
    return share


def _share_of_holders(masks: Tensor, participants: Tensor | None) -> Tensor:
    """Return which share of the clients that take part holds each neuron (K,)."""
    taking_part = masks if participants is None else masks[participants]
    return (
        taking_part.to(torch.float32).mean(0) if len(taking_part) else torch.zeros_like(masks[0], dtype=torch.float32)
    )


def _allocation(held: list[Tensor]) -> list[float] | None:
    """Return the mean of rounds' shares of holders, in groups of neighbours where there are many neurons."""
    if not held:
        return None
    mean = torch.stack(held).mean(0)
    size = math.ceil(len(mean) / ALLOCATION_GROUPS)
    return [round(float(group.mean()), 4) for group in torch.split(mean.cpu(), size)]


def _list(values: Tensor) -> list[float]:
    return [float(value) for value in values.detach().cpu().double()]
