"""Divergence of loss distributions, the data quality of FedAVE (Neurocomputing 2024): how typical a client's data is.

A model's mean losses over batches of the client's own data, and over batches of the validation set, are cut to the
shorter length and each divided by its sum, as in the authors' code:

    KL_i = Σ_b p_b ln(p_b / q_b), p the client's;   g_i = (1 / KL_i) / max_j (1 / KL_j), in (0, 1]

Both lists come from shuffled batches, so that for small clients KL_i is largely chance.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cofair.errors import RunError, UsageError

_FLOOR = 1e-12  # lists that agree to rounding: KL_i = 0 stands for this, so that g_i is 1 and not undefined


def divergences(own: Tensor, validation: Tensor) -> Tensor:
    """Return KL_i (N,) in float64 of batch losses (N, S) and (N, V), padded at the end with NaN.

    One batch alone is no distribution (p = q = 1 whatever it holds): NaN. No batch (an empty or absent client), or a
    batch that the validation set never loses on: infinite. A list of zeros counts as uniform.
    """
    own, validation = own.to(torch.float64), validation.to(torch.float64)
    length = torch.minimum(_lengths(own), _lengths(validation))
    longest = min(own.shape[1], validation.shape[1])
    inside = torch.arange(longest, device=own.device) < length[:, None]
    p, q = (_distribution(losses[:, :longest], inside, length) for losses in (own, validation))
    terms = torch.where(inside, torch.xlogy(p, p) - torch.xlogy(p, q), 0)
    found = terms.sum(1).clamp(min=0)
    found[length == 1] = torch.nan
    found[length == 0] = torch.inf
    return found


def closeness(divergence: Tensor) -> Tensor:
    """Return g_i (N,) from KL_i (N,): 1 for the most typical client, 0 for an infinite divergence.

    A client with a single batch (NaN) counts as the least typical client that can be judged; if none can, as typical.
    """
    judged = torch.isfinite(divergence)
    worst = torch.where(judged, divergence, 0).max()  # none is below 0
    known = torch.where(divergence.isnan(), worst, divergence).clamp(min=_FLOOR)
    nearest = known.min()
    return torch.where(known.isinf(), 0.0, nearest / known)


def batch_means(losses: Tensor, batch_size: int) -> Tensor:
    """Return mean losses (..., S) over batches, in order, of per-sample losses (..., n), the last perhaps smaller."""
    n = losses.shape[-1]
    if not n:
        return losses
    count = -(-n // batch_size)
    padded = F.pad(losses, (0, count * batch_size - n)).view(*losses.shape[:-1], count, batch_size)
    sizes = (n - torch.arange(count, device=losses.device) * batch_size).clamp(max=batch_size)
    return padded.sum(-1) / sizes


def _lengths(losses: Tensor) -> Tensor:
    """Return how many losses (N,) stand before the padding."""
    there = ~losses.isnan()
    wrong = torch.stack([(there[:, 1:] & ~there[:, :-1]).any(), losses.isinf().any(), (losses < 0).any()])
    gaps, infinite, negative = wrong.tolist()  # one look: a GPU waits for each
    if gaps:
        raise RunError("A batch loss is NaN, so losses cannot be compared: a lower learning rate may help.")
    if infinite:
        raise RunError("A batch loss is infinite, so losses cannot be compared: a lower learning rate may help.")
    if negative:
        raise UsageError("The divergence of FedAVE needs a loss that is never negative.")
    return there.sum(1)


def _distribution(losses: Tensor, inside: Tensor, length: Tensor) -> Tensor:
    cut = torch.where(inside, losses, 0)
    total = cut.sum(1, keepdim=True)
    return torch.where(total > 0, cut / total, 1 / length[:, None].clamp(min=1))
