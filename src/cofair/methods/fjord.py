"""FjORD: nested widths, one drawn in every local step (Horváth et al., NeurIPS 2021), given by reputation.

Its distillation is left out.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from cofair.engine.phases import Phase
from cofair.engine.protocol import Rewards
from cofair.methods.families.submodels import ReputedSubmodels
from cofair.methods.families.windows import WindowMethod
from cofair.methods.registry import register
from cofair.methods.server import Server
from cofair.settings import setting


@register
@dataclass(frozen=True)
class FjORD(WindowMethod):
    """The first units of each layer; every local step trains a width drawn from those up to the client's own."""

    name: ClassVar[str] = "fjord"
    paper: ClassVar[str] = "Horváth et al., NeurIPS 2021"

    widths: int = setting(5, "widths 1/n, 2/n, … below its own that a client also trains", minimum=1)

    def rewards(self, server: Server, state: ReputedSubmodels, t: int, phase: Phase) -> Rewards:
        """Hand out the submodels, and the narrower ones within them that steps draw from."""
        grid = torch.arange(1, self.widths + 1).to(state.reputation) / self.widths
        below = grid < state.reputation[:, None] / 100 - 1e-9  # (N, W): the last, width 1, is below no client's own
        masks = torch.where(below[:, :, None], self.windows(server, grid, t), state.granted[:, None])
        given = super().rewards(server, state, t, phase)
        return replace(given, step_masks=masks, step_choices=below.sum(1) + 1)  # its own follows those below it
