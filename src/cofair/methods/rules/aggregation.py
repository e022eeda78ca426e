"""How the server joins updates."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cofair.engine.protocol import Uploads


@dataclass(frozen=True)
class Aggregation:
    """How the updates of a parameter's holders become one: their mean, their median, or a mean without the extremes."""

    name: Literal["mean", "median", "trimmed"] = "mean"
    trim: float = 0.2  # share of the holders that "trimmed" leaves out at each end, rounded down


def mean_over_holders(
    uploads: Uploads, holds: Tensor | None, count: Literal["nonzero", "mask"], aggregation: Aggregation | None = None,
    weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean update (D,) of each parameter over the clients that hold it (FedSAC, FedRAC).

    The papers divide by the number of clients that hold a parameter, `holds` (N, D). Their code divides by the
    number whose update of it is not zero: fewer where a held parameter got no gradient. Without holders: no change.
    With weights (N,) it is a weighted mean, unless those of all clients that answered are zero; a median or a trimmed
    mean still counts every holder once.
    """
    if count == "nonzero" or holds is None:
        holders = (uploads.updates != 0) if count == "nonzero" else uploads.present[:, None]
    else:
        holders = holds & uploads.present[:, None]
    if aggregation is not None and aggregation.name != "mean":
        return _middle(uploads.updates, holders, aggregation)
    answered = None if weights is None else weights.double() * uploads.present
    if answered is not None and float(answered.max()) > 0:
        weights = (answered / answered.max()).to(uploads.updates)  # so that no power of a small one is lost in float32
        together = weights @ holders.to(uploads.updates)
        return (weights @ uploads.updates) / together.clamp(min=torch.finfo(together.dtype).tiny)
    number = holders.sum(0, dtype=uploads.updates.dtype)
    return uploads.updates.sum(0) / number.clamp(min=1)


def mean_over_clients(uploads: Uploads, aggregation: Aggregation | None = None) -> Tensor:
    """Return the plain mean update (D,) over the clients that answered."""
    if aggregation is not None and aggregation.name != "mean":
        return _middle(uploads.updates, uploads.present[:, None], aggregation)
    return uploads.updates.sum(0) / uploads.present.sum().clamp(min=1)


def _middle(updates: Tensor, holders: Tensor, aggregation: Aggregation) -> Tensor:
    """Return the median or the trimmed mean (D,) over holders (N, D) or (N, 1); 0 where no client holds a parameter."""
    ranked = updates.masked_fill(~holders, torch.inf).sort(0).values  # holders first
    number = holders.sum(0).expand(updates.shape[1])
    # the median leaves out all but the middle one or two
    cut = (number - 1).clamp(min=0) // 2 if aggregation.name == "median" else (aggregation.trim * number + 1e-9).long()
    place = torch.arange(len(updates), device=updates.device)[:, None]
    inside = (place >= cut) & (place < number - cut)
    return ranked.masked_fill(~inside, 0).sum(0) / inside.sum(0).clamp(min=1)


def cosine_with(updates: Tensor, aggregate: Tensor) -> Tensor:
    """Return the cosine (N,) of each update with the aggregate, 0 where one of them is zero."""
    return F.cosine_similarity(updates, aggregate[None], dim=1, eps=1e-12)
