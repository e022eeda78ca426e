"""Defences of the server against clients that cheat: each is a setting, all are off by default.

They act on uploads between the checks and the method, so that they combine with every method: long updates are cut, and
a client that disagrees with the others for long is removed, as RFFL and CFFL remove clients. How updates are joined, by
mean, median or trimmed mean, is decided in `methods/rules/aggregation.py`, where methods that average join them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from cofair.engine.protocol import Delivered, Uploads
from cofair.methods.rules.reputation import normalised, remaining
from cofair.rounds.client_status import ClientStatus
from cofair.settings import setting


@dataclass(frozen=True)
class DefenceSettings:
    """What the server does against clients that cheat."""

    norm_bound: float | None = setting(
        None, "updates are cut to this multiple of the median norm of a round's updates; none: they are not", above=0
    )
    aggregate: Literal["mean", "median", "trimmed"] = setting(
        "mean", "how methods that average join the updates of a parameter's holders"
    )
    trim: float = setting(0.2, "share of the holders that 'trimmed' leaves out at each end", minimum=0, maximum=0.49)
    threshold: float | None = setting(
        None, "removed is who has less than this times the mean reputation of the members; none: nobody is", minimum=0
    )
    memory: float = setting(0.95, "how much of that reputation stays in a round", minimum=0, maximum=1)
    patience: int = setting(10, "rounds in which nobody is removed", minimum=0)


def defended(
    settings: DefenceSettings, uploads: Uploads, status: ClientStatus, delivered: Callable[[], Delivered], t: int
) -> tuple[Uploads, ClientStatus]:
    """Return the uploads that the method may learn from, and the clients' status; the removed keep their models."""
    if settings.norm_bound is not None:
        uploads = bounded(uploads, settings.norm_bound)
    if settings.threshold is None:
        return uploads, status
    fresh = settings.memory * status.reputation + (1 - settings.memory) * agreement(uploads).double()
    reputation = normalised(torch.where(uploads.present, fresh, status.reputation), status.members)
    members = status.members
    if t > settings.patience:
        members = remaining(reputation, members, uploads.present, settings.threshold)
    if bool((status.members & ~members).any()):
        status = _without(status, ~members, status.kept(delivered()))
    status = replace(status, reputation=normalised(reputation, members), members=members)
    updates = uploads.updates.masked_fill(~members[:, None], 0)
    return replace(uploads, updates=updates, present=uploads.present & members), status


def bounded(uploads: Uploads, multiple: float) -> Uploads:
    """Return uploads of which none is longer than a multiple of the median norm over who answered."""
    norms = torch.linalg.vector_norm(uploads.updates, dim=1)
    if not bool(uploads.present.any()):
        return uploads
    longest = multiple * norms[uploads.present].quantile(0.5)
    return replace(uploads, updates=uploads.updates * (longest / norms.clamp(min=1e-30)).clamp(max=1)[:, None])


def agreement(uploads: Uploads) -> Tensor:
    """Return the cosine (N,) of each update with the mean direction of all, over the parameters that it changes.

    All count alike, however long their updates are. A small submodel is not held against its client: what it does not
    hold is not compared.
    """
    norms: Tensor = torch.linalg.vector_norm(uploads.updates, dim=1, keepdim=True)
    units: Tensor = uploads.updates / norms.clamp(min=1e-30)
    changed = units != 0
    mean = units.sum(0) / changed.sum(0).clamp(min=1)
    compared: Tensor = torch.linalg.vector_norm(changed * mean, dim=1)
    return units @ mean / compared.clamp(min=1e-30)


def _without(status: ClientStatus, removed: Tensor, now: Delivered) -> ClientStatus:
    """Return the status once some are removed: they count as the least contributors, and keep their models."""
    lowest = float(status.contributions.min())
    return replace(
        status,
        contributions=status.contributions.masked_fill(removed, lowest),
        rows=now.parameters.expand(len(removed), -1),
        masks=now.neuron_masks,
    )
