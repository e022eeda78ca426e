"""What a run remembers of its clients between rounds, whatever the method: contributions, absences, removals."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.errors import DivergedError
from cofair.methods.rules.growth import grown
from cofair.methods.server import Server
from cofair.neurons.map import NeuronMap


@dataclass(frozen=True)
class ClientStatus:
    """What a run remembers of its clients besides the method's state.

    `brought` is each client's contribution when it joined, `contributions` the latest measurement where the experiment
    asks for repeated ones. `reputation` and `members` belong to the defence: a client that is no longer a member was
    removed, and keeps the model of `rows` and `masks`. Where measurements are repeated, `alone` is what each
    client trained alone when it joined, and `handed` the newest of everything that it was handed since.
    """

    brought: Tensor  # (N,)
    contributions: Tensor  # (N,)
    away: Tensor  # (N,) twice the trainings that it has missed, less those since in which it took part
    failing: Tensor  # (N,) whose last upload was refused
    reputation: Tensor  # (N,)
    members: Tensor  # (N,)
    refusals: Tensor  # (N,) how many of its uploads were refused so far
    rows: Tensor | None = None  # (N, D)
    masks: Tensor | None = None  # (N, K)
    alone: Tensor | None = None  # (N, D)
    handed: Tensor | None = None  # (N, D) NaN for what a client was never handed
    any_failing: bool = False  # known here, since a GPU waits for every look at `failing`

    @classmethod
    def at_first(cls, brought: Tensor, alone: Tensor | None = None) -> "ClientStatus":
        """Return the status before the first round of clients that bring these contributions (N,)."""
        nothing = torch.zeros_like(brought)
        handed = None if alone is None else torch.full_like(alone, torch.nan)
        nobody = torch.zeros_like(nothing, dtype=torch.bool)
        never = torch.zeros_like(nobody, dtype=torch.int64)
        return cls(brought, brought, never, nobody, nothing, ~nobody, never, alone=alone, handed=handed)

    def after_handing(self, rewards: Rewards, neurons: NeuronMap | None) -> "ClientStatus":
        """Return the status once rewards were handed out."""
        if self.handed is None:
            return self
        got = torch.ones_like(self.members) if rewards.participants is None else rewards.participants
        new = got[:, None].expand_as(self.handed)
        if rewards.neuron_masks is not None and neurons is not None:
            new = new & neurons.parameter_mask(rewards.neuron_masks).bool()
        return replace(self, handed=torch.where(new, rewards.parameters, self.handed))

    def with_newcomers(self, brought: Tensor, alone: Tensor | None = None) -> "ClientStatus":
        """Return the status after some clients have joined, of what all of them brought (N,), newcomers last.

        `alone` (N, D) is what they trained alone, of which only the newcomers' counts.
        """
        fresh = ClientStatus.at_first(brought, alone)
        new = brought[len(self.brought) :]
        rows, masks = (
            None if kept is None else torch.cat([kept, kept.new_zeros(len(new), kept.shape[1])])
            for kept in (self.rows, self.masks)
        )
        return replace(
            grown(replace(self, rows=None, masks=None), fresh),
            brought=torch.cat([self.brought, new]), contributions=torch.cat([self.contributions, new]),
            rows=rows, masks=masks,
        )  # fmt: skip

    @property
    def as_brought(self) -> bool:
        """Say whether contributions are those that everybody came with."""
        return torch.equal(self.contributions, self.brought)

    def believed(self, fade: float) -> Tensor:
        """Return the contributions that the method uses (N,), less a share for every training that a client missed."""
        if not fade:
            return self.contributions
        kept = (1 - fade) ** (self.away / 2)
        return self.contributions - self.contributions.abs() * (1 - kept)  # they may be negative

    def after_missing(self, missed: Tensor, answered: Tensor) -> "ClientStatus":
        """Return the status after a training that some missed (N,).

        A client that took part regains half of what a missed training costs, so that turning up at the end, or every
        second time, does not count as having taken part.
        """
        return replace(self, away=torch.where(missed, self.away + 2, (self.away - answered.long()).clamp(min=0)))

    def after(self, uploads: Uploads, server: Server, t: int) -> "ClientStatus":
        """Return the status after uploads; where nobody's last upload was usable, training has diverged."""
        if not uploads.refused and not self.any_failing:
            return self
        failing = self.failing & ~uploads.present
        failing[list(uploads.refused)] = True
        refusals = self.refusals.clone()
        refusals[list(uploads.refused)] += 1
        if uploads.refused and bool(failing[server.sizes > 0].all()):
            client, reason = max(uploads.refused.items(), key=lambda one: int(refusals[one[0]]))
            times = "once" if refusals[client] == 1 else f"{int(refusals[client])} times"
            raise DivergedError(
                f"Training diverged by round {t}: every client's last upload was refused (client "
                f"{server.names[client]!r}, {times}: {reason})"
            )
        return replace(self, failing=failing, any_failing=bool(failing.any()), refusals=refusals)

    def kept(self, delivered: Delivered) -> Delivered:
        """Return what is delivered; a removed client keeps the model that it had then, and is promised nothing."""
        if self.rows is None:
            return delivered
        away = ~self.members
        parameters = torch.where(away[:, None], self.rows, delivered.parameters)
        masks = delivered.neuron_masks
        if masks is not None and self.masks is not None:
            masks = torch.where(away[:, None], self.masks, masks)
        promised, validated = (
            None if values is None else values.masked_fill(away, torch.nan)
            for values in (delivered.promised, delivered.validated)
        )
        return Delivered(parameters, masks, promised, validated)
