"""Submodels that are windows of each layer, with the width given by reputation: HeteroFL, FjORD, FedRolex.

The three give clients of little computing power a narrower model; here it is clients of little reputation. Each takes
the same share of every layer: the first units (HeteroFL: Diao et al., ICLR 2021), the first units in a width drawn anew
in every step (FjORD: Horváth et al., NeurIPS 2021, without its distillation), or a window that rolls on from round to
round (FedRolex: Alam et al., NeurIPS 2022). Parameters are averaged over the clients that hold them.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.exchange import Rewards
from cofair.methods.method import Server
from cofair.methods.registry import register
from cofair.methods.reputation import counted, of_the_best
from cofair.methods.submodels import SubmodelMethod, Submodels, exponential_share, neurons_of
from cofair.settings import setting


@dataclass(frozen=True)
class WindowMethod(SubmodelMethod):
    """Everybody holds a share p_i of the units of each layer, at least one; the best holds all.

    Shares follow from the contributions alone, so absent clients change nothing; equal contributions give equal
    submodels.
    """

    count: Literal["nonzero", "mask"] = setting(
        "mask", "who counts in the mean of a parameter: who holds it (papers), or whose update of it is not zero"
    )
    share: Literal["exponential", "linear"] = setting(
        "exponential", "p_i: exp(β c_i) / max_j exp(β c_j), the reputation of FedSAC, or c_i / max_j c_j"
    )
    beta: float = setting(10.0, "β: how steeply exponential shares grow with contribution", minimum=0)

    def start(self, server: Server) -> Submodels:
        """Shares are known from the start, so the first round hands out submodels already."""
        return self.grant(server, super().start(server), 1)

    def grant(self, server: Server, state: Submodels, t: int) -> Submodels:
        """Grant everybody its window of each layer."""
        c = server.contributions
        reputation = exponential_share(c, self.beta) if self.share == "exponential" else 100 * of_the_best(c)
        granted = self.windows(server, reputation / 100, t)
        return replace(state, granted=granted, reputation=reputation)

    def windows(self, server: Server, shares: Tensor, t: int) -> Tensor:
        """Return masks (N, K): the units of each layer within the first ⌈p K_l⌉ of the order of round t."""
        layers = []
        for where in neurons_of(server, self.name).slices:
            units = where.stop - where.start
            width = counted(shares, units, up=True).clamp(min=1)
            place = (torch.arange(units, device=shares.device) - self.first(t)) % units
            layers.append(place[None, :] < width[:, None])
        return torch.cat(layers, 1)

    def first(self, t: int) -> int:
        """Return the unit at which windows start in round t, counted around the layer."""
        return 0


@register
@dataclass(frozen=True)
class HeteroFL(WindowMethod):
    """The first units of each layer."""

    name: ClassVar[str] = "heterofl"
    paper: ClassVar[str] = "Diao et al., ICLR 2021"


@register
@dataclass(frozen=True)
class FjORD(WindowMethod):
    """The first units of each layer; every local step trains a width drawn from those up to the client's own."""

    name: ClassVar[str] = "fjord"
    paper: ClassVar[str] = "Horváth et al., NeurIPS 2021"

    widths: int = setting(5, "widths 1/n, 2/n, … below its own that a client also trains", minimum=1)

    def rewards(self, server: Server, state: Submodels, t: int, phase: str) -> Rewards:
        """Hand out the submodels, and the narrower ones within them that steps draw from."""
        grid = torch.arange(1, self.widths + 1).to(state.reputation) / self.widths
        below = grid < state.reputation[:, None] / 100 - 1e-9  # (N, W): the last, width 1, is below nobody's own
        masks = torch.where(below[:, :, None], self.windows(server, grid, t), state.granted[:, None])
        given = super().rewards(server, state, t, phase)
        return replace(given, step_masks=masks, step_choices=below.sum(1) + 1)  # its own follows those below it


@register
@dataclass(frozen=True)
class FedRolex(WindowMethod):
    """A window of each layer that rolls on from round to round, so that every unit is trained by everybody in time."""

    name: ClassVar[str] = "fedrolex"
    paper: ClassVar[str] = "Alam et al., NeurIPS 2022"

    step: int = setting(1, "units by which windows move on in a round; -1 is the direction of the authors' code")

    def first(self, t: int) -> int:
        """Start at unit 0 in the first round, `step` further in each next one."""
        return self.step * (t - 1)
