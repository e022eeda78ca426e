"""Where a run stands between two rounds: all that the next round reads, and so all that a checkpoint holds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cofair.engine.exchange import ClientStates, Rewards, Uploads
from cofair.engine.work import STAYS
from cofair.methods.method import Server
from cofair.runs.standing import Standing

ALLOCATION_GROUPS = 512  # a history names at most so many neurons, or groups of neighbours
Refusal = tuple[int, int, str]  # round, client, why


@dataclass(frozen=True)
class Tally:
    """What a run counts: downloads from its start on, everything else since the last test."""

    downloaded: Tensor  # (N,) whole models
    held: tuple[Tensor, ...] = ()  # one a training: which share of the clients held each neuron (K,)
    present: tuple[tuple[int, Tensor], ...] = ()  # one a training: its round, and whose upload counted (N,)
    refused: tuple[Refusal, ...] = ()

    @classmethod
    def empty(cls, server: Server) -> "Tally":
        """Return the counts before the first round."""
        return cls(torch.zeros(server.clients, dtype=torch.float64, device=server.initial.device))

    def after(self, server: Server, rewards: Rewards, uploads: Uploads, t: int) -> "Tally":
        """Return the counts after one more training."""
        masks, own = rewards.neuron_masks, [(t, client, why) for client, why in sorted(uploads.refused.items())]
        return Tally(
            self.downloaded + _download(server, rewards),
            self.held if masks is None else (*self.held, _share_of_holders(masks, rewards.participants)),
            self.present if rewards.work.phase in STAYS else (*self.present, (t, uploads.present)),
            (*self.refused, *own),
        )

    def with_newcomers(self, clients: int) -> "Tally":
        """Return the counts with zeros for newcomers."""
        new = clients - len(self.downloaded)
        present = tuple((t, torch.cat([was, was.new_zeros(new)])) for t, was in self.present)
        return replace(self, downloaded=torch.cat([self.downloaded, self.downloaded.new_zeros(new)]), present=present)

    def tested(self) -> "Tally":
        """Return the counts after a test."""
        return Tally(self.downloaded)

    def took_part(self, clients: int) -> list[int]:
        """Return in how many rounds since the last test each client's upload counted."""
        rounds: dict[int, Tensor] = {}
        for t, present in self.present:
            rounds[t] = rounds[t] | present if t in rounds else present
        return torch.stack(list(rounds.values())).sum(0).tolist() if rounds else [0] * clients

    def reasons(self, names: Sequence[str]) -> dict[str, str] | None:
        """Return why uploads were refused since the last test, the last reason of each client; None where none was."""
        return {names[client]: why for _, client, why in self.refused} or None

    def allocation(self) -> list[float] | None:
        """Return the mean of trainings' shares of holders, in groups of neighbours where there are many neurons."""
        if not self.held:
            return None
        mean = torch.stack(self.held).mean(0).double().cpu().numpy()
        starts = range(0, len(mean), math.ceil(len(mean) / ALLOCATION_GROUPS))
        counts = np.diff([*starts, len(mean)])
        groups: list[float] = (np.add.reduceat(mean, starts) / counts).round(4).tolist()
        return groups


@dataclass(frozen=True)
class Position:
    """A run after round t; `last` where it has come to its end."""

    t: int
    state: Any
    clients: ClientStates
    tally: Tally
    seconds: float
    standing: Standing
    last: bool = False


class Stopwatch:
    """Adds up the time that passes; a clock that jumps back adds nothing."""

    def __init__(self, clock: Callable[[], float], so_far: float = 0.0) -> None:
        """Go on from the seconds so far."""
        self._clock, self._seconds, self._latest = clock, so_far, clock()

    def seconds(self) -> float:
        """Return the seconds so far."""
        now = self._clock()
        self._seconds += max(0.0, now - self._latest)
        self._latest = now
        return self._seconds


def _download(server: Server, rewards: Rewards) -> Tensor:
    """Return the share of a whole model that travels to each client; stays where the model is."""
    device = server.initial.device
    if rewards.download is not None:
        return rewards.download.to(device, torch.float64)
    share = torch.ones(server.clients, dtype=torch.float64, device=device)
    if rewards.neuron_masks is not None and server.neurons is not None:
        share = server.neurons.kept_count(rewards.neuron_masks).double() / server.layout.size
    if rewards.participants is not None:
        share = share * rewards.participants.to(device)
    return share


def _share_of_holders(masks: Tensor, participants: Tensor | None) -> Tensor:
    """Return which share of the clients that take part holds each neuron (K,)."""
    taking_part = masks if participants is None else masks[participants]
    return (
        taking_part.to(torch.float32).mean(0) if len(taking_part) else torch.zeros_like(masks[0], dtype=torch.float32)
    )
