"""Contract with submodels, for devices that cannot hold the whole model: fair only among clients that forget.

Each round the server orders neurons by how seldom they were trained, as FedRAC does, and by importance those trained
about equally often, and gives each client the nested submodel whose validation accuracy is closest to what it is owed.
Submodels roll over all neurons, so that a client that keeps everything it was ever handed soon has the whole model.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from cofair.engine.protocol import Delivered
from cofair.methods.families.submodels import SubmodelMethod, Submodels
from cofair.methods.rules.calibration import calibrate
from cofair.methods.rules.promises import Inside
from cofair.methods.server import Server
from cofair.scoring.importance import taylor
from cofair.scoring.nested import prefix_masks

if TYPE_CHECKING:
    from cofair.methods.contract import Contract

_RANKED_ON = 250  # validation samples, at most: more of them do not make a better order


@dataclass(frozen=True)
class PromisedSubmodels(Submodels):
    """Submodels, the accuracies (or shares of neurons) that clients are promised (N,), and those validated (N,)."""

    promised: Tensor
    validated: Tensor


@dataclass(frozen=True)
class RollingSubmodels(SubmodelMethod[PromisedSubmodels]):
    """Submodels that are as accurate as a contract promises."""

    name: ClassVar[str] = "contract"
    paper: ClassVar[str] = "our own"

    contract: "Contract" = field(kw_only=True)

    def start(self, server: Server) -> PromisedSubmodels:
        """Hand out the whole model once."""
        nothing = torch.zeros_like(server.contributions)
        return PromisedSubmodels(**vars(super().start(server)), promised=nothing, validated=nothing)

    def weights(self, server: Server) -> Tensor | None:
        """Let larger contributors weigh more: most train most of the model here, whatever their data are worth."""
        return self.contract.weights(server)

    def grant(self, server: Server, state: PromisedSubmodels, t: int) -> PromisedSubmodels:
        """Order the neurons, and find for each client the submodel that meets its promise."""
        terms = self.contract
        order = self.order(server, state.parameters, state.frequency, t)
        if terms.pays == "neurons":
            shares = terms.promise()(server.contributions, 1.0)
            sizes = sizes_of(shares, server.contributions, len(order), terms.pack)
            return replace(state, granted=prefix_masks(order, sizes), promised=shares)
        scorer, checked_by = server.validation, None
        if terms.fit == "halves":
            scorer, checked_by = scorer.halves() if t % 2 else scorer.halves()[::-1]
        curve = terms.owed(server)
        found = calibrate(
            scorer, state.parameters, order, server.contributions, curve, terms.pack, checked_by,
            inside=isinstance(curve, Inside),
        )  # fmt: skip
        return replace(state, granted=found.masks, promised=found.promised, validated=found.validated)

    def order(self, server: Server, parameters: Tensor, frequency: Tensor, t: int) -> Tensor:
        """Return the neurons (K,) for round t: the least trained first, then the least important.

        With unimportant neurons first it takes more of them to be as accurate as promised: clients train more for the
        same reward.
        """
        if self.contract.pays == "neurons" or not self.contract.alike:
            return frequency.argsort(stable=True)
        importance = taylor(server.validation.thinned(_RANKED_ON), parameters)
        ranked = importance.argsort(stable=True)
        trained = (frequency / (self.contract.alike * server.clients)).floor()
        return ranked[trained[ranked].argsort(stable=True)]

    def delivered(self, server: Server, state: PromisedSubmodels) -> Delivered:
        """Deliver the submodels that were granted for the next round: they were calibrated on the current model."""
        if self.contract.pays == "neurons":
            return Delivered(state.parameters, state.granted)
        return Delivered(state.parameters, state.granted, state.promised, state.validated)


def sizes_of(shares: Tensor, contributions: Tensor, neurons: int, pack: int) -> Tensor:
    """Return how many neurons (N,) shares of them are, in packs, at least one; everything for the best contributor."""
    counts = (shares * neurons / pack).round().long().mul(pack).clamp(pack, neurons)
    return torch.where(contributions == contributions.max(), neurons, counts)
