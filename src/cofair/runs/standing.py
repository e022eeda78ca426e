"""How clients stand with the server between rounds, whatever the method: what they bring, who was removed."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair.engine.exchange import Delivered, Uploads
from cofair.errors import RunError
from cofair.methods.method import Server


@dataclass(frozen=True)
class Standing:
    """What a run remembers of its clients beside the method's state; the two are all that a round starts from.

    `contributions` are those that the method sees, measured anew where the experiment asks for that. `reputation` and
    `members` belong to the defence: who is no member was removed, and keeps the model of `rows` and `masks`.
    """

    contributions: Tensor  # (N,)
    failing: Tensor  # (N,) whose last upload was refused
    reputation: Tensor  # (N,)
    members: Tensor  # (N,)
    rows: Tensor | None = None  # (N, D)
    masks: Tensor | None = None  # (N, K)

    @classmethod
    def at_first(cls, server: Server) -> "Standing":
        """Return how clients stand before the first round."""
        nothing = torch.zeros_like(server.contributions)
        nobody = torch.zeros_like(nothing, dtype=torch.bool)
        return cls(server.contributions, nobody, nothing, ~nobody)

    def after(self, uploads: Uploads, server: Server, t: int) -> "Standing":
        """Return how clients stand after uploads; where nobody's last upload was any good, training has diverged."""
        if not uploads.refused and not bool(self.failing.any()):
            return self
        failing = self.failing & ~uploads.present
        failing[list(uploads.refused)] = True
        if uploads.refused and bool(failing[server.sizes > 0].all()):
            client, reason = next(iter(uploads.refused.items()))
            raise RunError(
                f"Training diverged by round {t}: every client's last upload was refused (client "
                f"{server.names[client]!r}: {reason}); lower training.lr or set training.clip."
            )
        return replace(self, failing=failing)

    def kept(self, delivered: Delivered) -> Delivered:
        """Return what is delivered; who was removed keeps the model that it had then."""
        if self.rows is None:
            return delivered
        away = ~self.members
        parameters = torch.where(away[:, None], self.rows, delivered.parameters)
        masks = delivered.neuron_masks
        if masks is not None and self.masks is not None:
            masks = torch.where(away[:, None], self.masks, masks)
        return replace(delivered, parameters=parameters, neuron_masks=masks)
