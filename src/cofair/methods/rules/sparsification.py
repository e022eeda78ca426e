"""Rewards that are the largest entries of the aggregate (CGSV, Eq. 5; FedAVE; CFFL; RFFL)."""

import torch
from torch import Tensor

from cofair.methods.rules.reputation import counted
from cofair.models.parameters import Layout


def largest_entries(
    update: Tensor, shares: Tensor, layout: Layout, *, per_tensor: bool = True, drop_one: bool = False
) -> Tensor:
    """Return (N, D): the share q_i of the largest-magnitude entries of an update (D,), zeros elsewhere.

    `per_tensor` keeps ⌈q_i · length⌉ entries of each parameter tensor, as the authors' code; otherwise ⌊q_i · D⌋ of
    all, as the paper. Entries as large as the last one kept are kept too. The code never keeps a whole tensor, even
    for q_i = 1: `drop_one` restores that (tensors of one entry apart, which it could never reward).
    """
    rows = update.new_empty(len(shares), len(update))
    if not per_tensor:
        return _kept(update, counted(shares, len(update), up=False), rows)
    for own in layout.slices:
        length = own.stop - own.start
        counts = counted(shares, length, up=True)
        if drop_one and length > 1:
            counts = counts.clamp(max=length - 1)
        _kept(update[own.start : own.stop], counts, rows[:, own.start : own.stop])
    return rows


def _kept(values: Tensor, counts: Tensor, rows: Tensor) -> Tensor:
    """Write the `counts[i]` largest values to row i."""
    size = values.abs()
    ranked = size.sort(descending=True).values
    counts = counts.to(values.device).clamp(0, len(values))
    threshold = ranked[(counts - 1).clamp(min=0)]
    threshold = torch.where(counts > 0, threshold, torch.inf)
    return torch.mul(values, size >= threshold[:, None], out=rows)
