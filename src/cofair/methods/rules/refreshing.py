"""Which entries of a client's model are brought up to date, and how many: as many as keep it at its promise."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from cofair.models.parameters import Layout
from cofair.scoring.scorer import Scorer

First = Literal["rows", "largest", "mixed", "random"]
_SAMPLED = 2**14  # entries from which the size of a share is told: sorting all of them takes longer than scoring


def priorities(first: First, whole: Tensor, own: Tensor, layout: Layout, random: Sequence[torch.Generator]) -> Tensor:
    """Return how early each entry (n, D) of the clients' models `own` comes: the larger, the earlier.

    "rows" draws rows of weight matrices (what a neuron is), "random" entries; "largest" begins with the largest
    differences from the whole model, "mixed" draws entries in proportion to their differences. There is one source of
    randomness for each client.
    """
    differences = (whole - own).abs()
    if first == "largest":
        return differences
    drawn = torch.stack([torch.rand(own.shape[1], generator=one) for one in random]) if random else own.new_empty(0)
    drawn = drawn.to(own).view_as(own)
    if first == "mixed":
        return differences * drawn
    if first == "rows":
        for part in layout.slices:
            if len(part.shape) > 1:
                each = (part.stop - part.start) // part.shape[0]
                rows = drawn[:, part.start : part.start + part.shape[0]].clone()
                drawn[:, part.start : part.stop] = rows.repeat_interleave(each, 1)
    return drawn


def refreshed(
    scorer: Scorer, whole: Tensor, own: Tensor, keys: Tensor, promised: Tensor, accuracies: Tensor, looks: int
) -> tuple[Tensor, Tensor]:
    """Return models (n, D) with as many entries of the whole model as their promises (n,) allow, and their accuracies.

    How many is found by halving, with so many looks, counted in what they weigh together: the largest differences are
    few, and each matters. A model that is better than its promise already, as
    the promise fell, gets no better by this: nothing that was handed out can be taken back.
    """
    if not len(own):
        return own, accuracies
    bound = torch.maximum(promised, accuracies)
    ranked = keys[:, :: max(1, keys.shape[1] // _SAMPLED)].sort(1, descending=True).values
    weight = ranked.double().cumsum(1)
    low, high = torch.zeros_like(bound), torch.ones_like(bound)
    found, found_accuracies = own, accuracies
    for _ in range(looks):
        share = (low + high) / 2
        last = torch.searchsorted(weight, (share * weight[:, -1].to(share))[:, None].to(weight))
        least = ranked.gather(1, last.clamp(max=ranked.shape[1] - 1))
        candidates = torch.where(keys > least, whole, own)
        scores = scorer.score(candidates).metric.to(bound)
        fits = scores <= bound
        found = torch.where(fits[:, None], candidates, found)
        found_accuracies = torch.where(fits, scores, found_accuracies)
        low, high = torch.where(fits, share, low), torch.where(fits, high, share)
    return found, found_accuracies
