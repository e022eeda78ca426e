"""The one loop: rewards out, local training, uploads in."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cofair import metrics
from cofair.engine.exchange import ClientStates, Delivered, Rewards, Uploads
from cofair.engine.scoring import Scorer
from cofair.errors import RunError
from cofair.methods import Method
from cofair.methods.method import Server
from cofair.runs.history import Record
from cofair.runs.prepare import Prepared

ALLOCATION_GROUPS = 512  # a history names at most so many neurons, or groups of neighbours


@dataclass(frozen=True)
class Training:
    """A local training that a run waits for: what is handed out, what the clients remember, the round."""

    rewards: Rewards
    clients: ClientStates
    t: int


@dataclass(frozen=True)
class Tested:
    """A tested round: what was measured, and the models delivered."""

    record: Record
    delivered: Delivered


Trained = tuple[Uploads, ClientStates]


def rounds(method: Method[Any], prepared: Prepared) -> Iterator[tuple[Record, Delivered]]:
    """Run a method and yield, for each round that is tested, what was measured and the models delivered."""
    run = going(method, prepared)
    event = next(run, None)
    while event is not None:
        if isinstance(event, Tested):
            yield event.record, event.delivered
            event = next(run, None)
        else:
            event = _sent(run, prepared.engine.train(event.rewards, event.clients, event.t))


def going(
    method: Method[Any], prepared: Prepared, clock: Callable[[], float] = time.perf_counter
) -> Generator[Training | Tested, Trained | None, None]:
    """Run a method; whoever drives it sends what each training gave. Runs in lockstep are trained together."""
    server, began = prepared.server, clock()
    state, clients = method.start(server), ClientStates()
    downloaded = torch.zeros(server.clients, dtype=torch.float64, device=server.initial.device)
    held: list[Tensor] = []
    last = method.rounds(server)
    for t in range(1, last + 1):
        for phase in method.phases(server, t):
            rewards = method.rewards(server, state, t, phase)
            trained = yield Training(rewards, clients, t)
            assert trained is not None
            uploads, remembered = trained
            clients = remembered if rewards.keeps_memory else clients
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
                seconds=clock() - began,
                last=t == last,
                allocation=_allocation(held),
                promised=None if delivered.promised is None else _list(delivered.promised),
                validated=None if delivered.validated is None else _list(delivered.validated),
            )
            held.clear()
            yield Tested(record, delivered)


def _sent(run: Generator[Training | Tested, Trained | None, None], trained: Trained) -> Training | Tested | None:
    """Send a run what its training gave; None where that was its end."""
    try:
        return run.send(trained)
    except StopIteration:
        return None


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
    """Return the share of a whole model that travels to each client; stays where the model is."""
    device = server.initial.device
    if rewards.download is not None:
        return rewards.download.to(device, torch.float64)
    share = torch.ones(server.clients, dtype=torch.float64, device=device)
    if rewards.neuron_masks is not None and server.neurons is not None:
        kept = server.neurons.parameter_mask(rewards.neuron_masks)
        share = kept.sum(1).double() / kept.shape[1]
    if rewards.participants is not None:
        share = share * rewards.participants.to(device)
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
    mean = torch.stack(held).mean(0).double().cpu().numpy()
    starts = range(0, len(mean), math.ceil(len(mean) / ALLOCATION_GROUPS))
    counts = np.diff([*starts, len(mean)])
    groups: list[float] = (np.add.reduceat(mean, starts) / counts).round(4).tolist()
    return groups


def _list(values: Tensor) -> list[float]:
    return [float(value) for value in values.detach().cpu().double()]
