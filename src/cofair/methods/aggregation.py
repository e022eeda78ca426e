"""How the server joins updates."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from cofair.engine.exchange import Uploads


def mean_over_holders(uploads: Uploads, holds: Tensor | None, count: Literal["nonzero", "mask"]) -> Tensor:
    """Return the mean update (D,) of each parameter over the clients that hold it (FedSAC, FedRAC).

    The papers divide by the number of clients that hold a parameter, `holds` (N, D). Their code divides by the
    number whose update of it is not zero: fewer where a held parameter got no gradient. Held by nobody: no change.
    """
    if count == "nonzero" or holds is None:
        holders = (uploads.updates != 0) if count == "nonzero" else uploads.present[:, None]
    else:
        holders = holds & uploads.present[:, None]
    number = holders.sum(0, dtype=uploads.updates.dtype)
    return uploads.updates.sum(0) / number.clamp(min=1)


def mean_over_clients(uploads: Uploads) -> Tensor:
    """Return the plain mean update (D,) over the clients that answered."""
    return uploads.updates.sum(0) / uploads.present.sum().clamp(min=1)


def cosine_with(updates: Tensor, aggregate: Tensor) -> Tensor:
    """Return the cosine (N,) of each update with the aggregate, 0 where one of them is zero."""
    return F.cosine_similarity(updates, aggregate[None], dim=1, eps=1e-12)
