"""Who takes part in a round: clients that join late, leave, are sampled, or do not answer.

Everything is drawn for a client's name and a round, never consumed, so that every engine, a resumed run and federations
that list their clients in another order see the same clients come and go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair import randomness
from cofair.engine.protocol import Rewards, Uploads
from cofair.errors import UsageError
from cofair.settings import setting

_UNIT = 2.0**-63


@dataclass(frozen=True)
class ParticipationSettings:
    """Who takes part in which round."""

    fraction: float = setting(1.0, "share of the current clients that is sampled in a round", above=0, maximum=1)
    dropout: float = setting(0.0, "probability that a sampled client does not answer", minimum=0, maximum=1)
    join: tuple[int, ...] = setting(
        (), "first round of each client, in order; clients beyond the list are there from round 1", minimum=1
    )
    leave: tuple[int, ...] = setting(
        (), "last round of each client, in order; 0, or beyond the list: it stays to the end", minimum=0
    )
    fade: float | None = setting(
        None,
        "share of its reputation that a client loses with each training it misses and regains with every two that it "
        "takes part in; by default 0 in simulations and 0.2 in deployments",
        minimum=0,
        maximum=1,
    )


class Participation:
    """Who takes part in each round of a run."""

    def __init__(self, settings: ParticipationSettings, names: Sequence[str], seed: int, device: torch.device) -> None:
        """Take the settings and the clients that they apply to."""
        for name in ("join", "leave"):
            given = getattr(settings, name)
            if len(given) > len(names):
                raise UsageError(
                    f"participation.{name} lists {len(given)} clients, but the federation has {len(names)}."
                )
        self.settings = settings
        self._device = device
        self._keys = randomness.client_keys(seed, names)
        self._join = torch.tensor([*settings.join, *[1] * (len(names) - len(settings.join))])
        self._leave = torch.tensor([*settings.leave, *[0] * (len(names) - len(settings.leave))])

    @property
    def everybody(self) -> bool:
        """Return whether all clients take part in all rounds."""
        return replace(self.settings, fade=None) == ParticipationSettings()

    def there(self, t: int) -> Tensor:
        """Return who has joined by round t and has not left (N,)."""
        return ((self._join <= t) & ((self._leave == 0) | (t <= self._leave))).to(self._device)

    def sampled(self, t: int) -> Tensor:
        """Return who is there and is asked to take part in round t (N,)."""
        there = self.there(t).cpu()
        count = int(there.sum())
        sampled = max(1, round(self.settings.fraction * count)) if count else 0
        rank = self._drawn(t, "sampled").masked_fill(~there, 2).argsort(stable=True).argsort()
        return (there & (rank < sampled)).to(self._device)

    def answering(self, t: int) -> Tensor:
        """Return who is there, sampled, and answers in round t (N,)."""
        answers = self._drawn(t, "dropout") >= self.settings.dropout
        return self.sampled(t) & answers.to(self._device)

    def limited(self, rewards: Rewards, t: int, members: Tensor | None = None) -> Rewards:
        """Return rewards for only the clients that take part and, if some were removed, are still members (N,).

        Work whose result stays with the clients, such as FedAvg's personal epoch, is done by all that get the model.
        """
        if not rewards.work.phase.uploads:
            return rewards
        parts = [rewards.participants, None if self.everybody else self.answering(t), members]
        known = [part.to(self._device) for part in parts if part is not None]
        if not known:
            return rewards
        return replace(rewards, participants=torch.stack(known).all(0))

    def _drawn(self, t: int, purpose: str) -> Tensor:
        """Return one number from 0 to 1 per client (N,)."""
        keys = randomness.fold(randomness.fold(self._keys, t), randomness.address("participation", purpose))
        return (keys & torch.iinfo(torch.int64).max).double() * _UNIT


def had_no_effect(rewards: Rewards, uploads: Uploads) -> Tensor:
    """Return which clients had something to train but uploaded no change (N,): they might as well be absent."""
    nothing = ~uploads.updates.any(1)
    return nothing if rewards.neuron_masks is None else nothing & rewards.neuron_masks.any(1).to(nothing.device)
