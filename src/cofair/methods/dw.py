"""DW: rewards by data size, a baseline of CGSV (Xu et al., NeurIPS 2021).

A client with more samples receives more of the aggregate, whatever its samples are worth. Nothing is judged: the
share is the number of samples over the largest number of samples. All else is as in CGSV.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from cofair.engine.protocol import Uploads
from cofair.methods.families.sparse_aggregate import OwnModels, SparsifiedMethod, from_contributions
from cofair.methods.registry import register
from cofair.methods.rules.reputation import normalised, of_the_best
from cofair.methods.server import Server
from cofair.settings import setting


@register
@dataclass(frozen=True)
class DW(SparsifiedMethod[OwnModels]):
    """Reward by the number of samples.

    Absent clients count with their samples all the same, and a client without any receives nothing. Equal sizes give
    everybody everything.
    """

    name: ClassVar[str] = "dw"
    paper: ClassVar[str] = "baseline of Xu et al., NeurIPS 2021"

    reputation_from: Literal["size", "contributions"] = setting(
        "size", "reward by samples (the baseline), or by the true contributions (as FedSAC and FedRAC compare)"
    )

    def judge(
        self, server: Server, state: OwnModels, uploads: Uploads, updates: Tensor, aggregate: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return n_i / n as reputation and q_i = n_i / max_j n_j."""
        if self.reputation_from == "contributions":
            reputation = from_contributions(server, state.reputation)
        else:
            reputation = normalised(server.sizes.to(state.reputation))
        return reputation, of_the_best(reputation)
