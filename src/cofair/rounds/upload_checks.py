"""The server's checks: uploads that no method could learn from are refused before a method sees them.

A refused client counts as absent in that round. Nothing that it sent reaches a method, a reward or a statistic.
"""

from dataclasses import replace

import torch
from torch import Tensor

from cofair.engine.protocol import Rewards, Uploads
from cofair.engine.schedule import batches_per_epoch
from cofair.engine.statistics import LOOK
from cofair.errors import RunError
from cofair.models.parameters import Layout

NOT_FINITE = "its update is not finite"
TOO_LONG = "its update is out of all proportion to the model"
NO_LOSSES = "the losses that it was asked for are missing or not finite"
NOT_ASKED = "it was not asked in this round"
RESENT = "its model trained alone is nearer to what it was handed than to its own first one"
LONGEST = 1e4  # times 1 + the norm of the reward; anything longer has diverged, or is meant to make others diverge


def admitted(rewards: Rewards, uploads: Uploads, layout: Layout) -> Uploads:
    """Return the uploads without those that are not finite, far too long, unrequested or lacking statistics."""
    shape = (len(uploads.present), layout.size)
    if tuple(uploads.updates.shape) != shape or uploads.updates.dtype != layout.dtype:
        raise RunError(
            f"The engine returned updates of shape {tuple(uploads.updates.shape)} and {uploads.updates.dtype}, "
            f"but the model has rows {shape} of {layout.dtype}."
        )
    norms = torch.linalg.vector_norm(uploads.updates, dim=1)
    given: Tensor = torch.linalg.vector_norm(rewards.parameters, dim=-1)
    short = norms <= LONGEST * (1 + given)  # also False for NaN
    fine = short & _fine_statistics(uploads)
    unasked = torch.zeros_like(fine) if rewards.participants is None else ~rewards.participants.to(fine.device)
    bad = uploads.present & (~fine | unasked)
    if not bool(bad.any()):
        return uploads
    reasons = dict(uploads.refused)
    for i in bad.nonzero().flatten().tolist():
        if bool(unasked[i]):
            reasons[i] = NOT_ASKED
        elif bool(short[i]):
            reasons[i] = NO_LOSSES
        else:
            reasons[i] = TOO_LONG if bool(torch.isfinite(uploads.updates[i]).all()) else NOT_FINITE
    return replace(
        uploads,
        updates=uploads.updates.masked_fill(bad[:, None], 0),
        present=uploads.present & ~bad,
        statistics={
            name: values.masked_fill(bad.view(-1, *[1] * (values.dim() - 1)), torch.nan)
            for name, values in uploads.statistics.items()
        },
        refused=reasons,
    )


def resent(alone: Tensor, first: Tensor, handed: Tensor, whole: Tensor) -> Tensor:
    """Return which models said to be trained alone (N, D) rather are what the server handed out (N,).

    They are nearer to the whole model (D,), or the client's own (N, D), than to what the client trained first (N, D),
    when it had been handed nothing; or they are so to the newest of everything that the client was `handed` (N, D, NaN
    for what it never was), which it may have put together from submodels.
    """
    known = ~handed.isnan()
    return (_distances(alone, whole) < _distances(alone, first)) | (
        _distances(alone * known, handed.nan_to_num(0)) < _distances(alone * known, first * known)
    )


def _distances(rows: Tensor, others: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(rows - others, dim=1)
    return found


def _fine_statistics(uploads: Uploads) -> Tensor:
    """Return which clients sent as many finite statistics as were asked for (N,)."""
    fine = torch.ones_like(uploads.present)
    for values in uploads.statistics.values():
        if values.dim() == 1:
            fine &= torch.isfinite(values)
        else:  # losses of batches (N, S): a client with fewer batches than others has NaN after its own
            own = batches_per_epoch(uploads.sizes.cpu(), LOOK).to(values.device)
            beyond = torch.arange(values.shape[1], device=values.device) >= own[:, None]
            fine &= (torch.isfinite(values) | beyond).all(1)
    return fine
