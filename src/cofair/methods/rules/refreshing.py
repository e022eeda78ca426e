"""Which blocks of a client's model are brought up to date, and how many: as many as keep it at its promise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cofair.scoring.mixtures import Mixtures

First = Literal["random", "largest", "mixed"]


def priorities(first: First, means: Tensor, drawn: Tensor) -> Tensor:
    """Return how early each block (n, B) of some clients' models comes: the larger, the earlier.

    `means` are how far a block's entries are from the whole model's, in the mean, and `drawn` are random numbers.
    "random" draws blocks, "largest" begins with the largest differences, "mixed" draws in proportion to them.
    """
    return {"random": drawn, "largest": means, "mixed": means * drawn}[first]


def drawn_for(random: Sequence[torch.Generator], blocks: int, like: Tensor) -> Tensor:
    """Return random numbers (n, B), with a source for each client."""
    if not random:
        return like.new_empty(0, blocks)
    return torch.stack([torch.rand(blocks, generator=one) for one in random]).to(like)


@dataclass(frozen=True)
class Search:
    """How many blocks fit is looked for: around which share of the differences (n,), with so many looks."""

    share: Tensor
    looks: int


@dataclass(frozen=True)
class Refreshed:
    """Models (n, D), their accuracies (n,), and the shares of the differences that fitted (n,)."""

    models: Tensor
    accuracies: Tensor
    shares: Tensor


def refreshed(
    mixtures: Mixtures, keys: Tensor, weights: Tensor, promised: Tensor, accuracies: Tensor, search: Search
) -> Refreshed:
    """Return models with as many blocks of the whole model as their promises (n,) allow.

    Blocks come in the order of their keys (n, B). How many is found by halving twice the share that fitted last time,
    counted in what blocks weigh (n, B). A model whose accuracy (n,) is above its promise already, as the promise fell,
    gets no better by this: nothing that was handed out can be taken back.
    """
    found = Refreshed(mixtures.own, accuracies, search.share)
    if not len(keys):
        return found
    bound = torch.maximum(promised, accuracies)
    order = keys.argsort(stable=True, dim=1, descending=True)
    until = weights.gather(1, order).double().cumsum(1)
    low, high = torch.zeros_like(bound), (2 * search.share).clamp(max=1)
    share = low
    for _ in range(search.looks):
        share = (low + high) / 2
        fitting = until <= (share * until[:, -1].to(share))[:, None]
        candidates, metric = mixtures.score(torch.zeros_like(fitting).scatter(1, order, fitting))
        scores = metric.to(bound)
        fits = scores <= bound
        models = torch.where(fits[:, None], candidates, found.models)
        low, high = torch.where(fits, share, low), torch.where(fits, high, share)
        found = Refreshed(models, torch.where(fits, scores, found.accuracies), torch.where(low > 0, low, share))
    return found
