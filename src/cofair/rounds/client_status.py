"""How clients stand with the server between rounds, whatever the method: what they bring, who was removed."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair.engine.protocol import Delivered, Uploads
from cofair.errors import RunError
from cofair.methods.method import Server
from cofair.methods.rules.growth import grown


@dataclass(frozen=True)
class Standing:
    """What a run remembers of its clients beside the method's state; the two are all that a round starts from.

    `brought` is what everybody brought when it came, `contributions` the same measured anew where the experiment asks
    for that. `reputation` and `members` belong to the defence: who is no member was removed, and keeps the model of
    `rows` and `masks`.
    """

    brought: Tensor  # (N,)
    contributions: Tensor  # (N,)
    away: Tensor  # (N,) twice the trainings that it has missed, less those since in which it took part
    failing: Tensor  # (N,) whose last upload was refused
    reputation: Tensor  # (N,)
    members: Tensor  # (N,)
    rows: Tensor | None = None  # (N, D)
    masks: Tensor | None = None  # (N, K)
    any_failing: bool = False  # known here, since a GPU waits for every look at `failing`

    @classmethod
    def at_first(cls, server: Server) -> "Standing":
        """Return how clients stand before the first round."""
        nothing = torch.zeros_like(server.contributions)
        nobody = torch.zeros_like(nothing, dtype=torch.bool)
        brought = server.contributions
        return cls(brought, brought, torch.zeros_like(nobody, dtype=torch.int64), nobody, nothing, ~nobody)

    def with_newcomers(self, server: Server) -> "Standing":
        """Return how clients stand when some have joined, last of all that the server knows."""
        fresh = Standing.at_first(server)
        new = server.contributions[len(self.brought) :]
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
        """Tell whether contributions are those that everybody came with."""
        return torch.equal(self.contributions, self.brought)

    def believed(self, fade: float) -> Tensor:
        """Return the contributions that the method goes by (N,), less a share for every training somebody missed."""
        if not fade:
            return self.contributions
        kept = (1 - fade) ** (self.away / 2)
        return self.contributions - self.contributions.abs() * (1 - kept)  # they may be negative

    def after_missing(self, missed: Tensor, answered: Tensor) -> "Standing":
        """Return how clients stand after a training that some missed (N,).

        Who took part regains half of what one training costs: to be there at the end, or every second time, is not to
        have taken part.
        """
        return replace(self, away=torch.where(missed, self.away + 2, (self.away - answered.long()).clamp(min=0)))

    def after(self, uploads: Uploads, server: Server, t: int) -> "Standing":
        """Return how clients stand after uploads; where nobody's last upload was any good, training has diverged."""
        if not uploads.refused and not self.any_failing:
            return self
        failing = self.failing & ~uploads.present
        failing[list(uploads.refused)] = True
        if uploads.refused and bool(failing[server.sizes > 0].all()):
            client, reason = next(iter(uploads.refused.items()))
            raise RunError(
                f"Training diverged by round {t}: every client's last upload was refused (client "
                f"{server.names[client]!r}: {reason}); lower training.lr or set training.clip."
            )
        return replace(self, failing=failing, any_failing=bool(failing.any()))

    def kept(self, delivered: Delivered) -> Delivered:
        """Return what is delivered; who was removed keeps the model that it had then, and is promised nothing."""
        if self.rows is None:
            return delivered
        away = ~self.members
        parameters = torch.where(away[:, None], self.rows, delivered.parameters)
        masks = delivered.neuron_masks
        if masks is not None and self.masks is not None:
            masks = torch.where(away[:, None], self.masks, masks)
        told = (
            None if one is None else one.masked_fill(away, torch.nan)
            for one in (delivered.promised, delivered.validated)
        )
        return Delivered(parameters, masks, *told)
