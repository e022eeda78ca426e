"""Which parts of a client's model are brought up to date, and how many: as many as keep it at its promise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from cofair.scoring.mixtures import Mixtures
from cofair.scoring.scorer import Scorer

First = Literal["rows", "largest", "mixed"]
STEP = 8.0  # how much more or less is looked at: together, the looks of a search reach so far either way


class Order(Protocol):
    """Candidates for some clients' models: the more, the more of the server's model is in them.

    How much is a number for each client (n,), between `least` and `most`; a search begins at `begin`.
    """

    least: ClassVar[float]
    begin: ClassVar[float]
    most: ClassVar[float]
    own: Tensor  # their models as they are (n, D)

    def score(self, much: Tensor) -> tuple[Tensor, Tensor]:
        """Return the models (n, D) with so much (n,) of the server's, and their accuracies (n,)."""


class Rows:
    """Whole blocks at random, such as the weights and the bias of a unit; `much` is a share of what differs."""

    least: ClassVar[float] = 2**-10
    begin: ClassVar[float] = 0.5
    most: ClassVar[float] = 1.0

    def __init__(self, mixtures: Mixtures, drawn: Tensor, distances: Tensor) -> None:
        """Take the blocks in the order of random numbers (n, B); `distances` (n, B) are how far they are behind."""
        self.own, self._mixtures = mixtures.own, mixtures
        self._order = drawn.argsort(stable=True, dim=1, descending=True)
        self._until = distances.gather(1, self._order).double().cumsum(1)

    def score(self, much: Tensor) -> tuple[Tensor, Tensor]:
        """Return the models with so much of the server's, and their accuracies."""
        fitting = self._until <= (much * self._until[:, -1].to(much))[:, None]
        return self._mixtures.score(torch.zeros_like(fitting).scatter(1, self._order, fitting))


class Entries:
    """Single entries, those with the largest differences first; `much` is how many times smaller one may be."""

    least: ClassVar[float] = 1.0
    begin: ClassVar[float] = 4.0
    most: ClassVar[float] = 2.0**20

    def __init__(self, scorer: Scorer, whole: Tensor, own: Tensor, drawn: Tensor | None = None) -> None:
        """Take entries by their differences; by their products with random numbers (n, D), if such are given."""
        self.own, self._scorer, self._whole = own, scorer, whole
        differences = (whole - own).abs()
        self._keys = differences if drawn is None else differences * drawn
        self._largest = self._keys.amax(1) if len(own) else own.new_zeros(0)

    def score(self, much: Tensor) -> tuple[Tensor, Tensor]:
        """Return the models with so much of the server's, and their accuracies."""
        models = torch.where(self._keys >= (self._largest / much.to(self._largest))[:, None], self._whole, self.own)
        return models, self._scorer.score(models).metric


def drawn_for(random: Sequence[torch.Generator], count: int, like: Tensor) -> Tensor:
    """Return random numbers (n, count), with a source for each client."""
    if not random:
        return like.new_empty(0, count)
    return torch.stack([torch.rand(count, generator=one) for one in random]).to(like)


@dataclass(frozen=True)
class Refreshed:
    """Models (n, D), their accuracies (n,), and how much of the server's model fitted into them (n,)."""

    models: Tensor
    accuracies: Tensor
    much: Tensor


def refreshed(
    order: Order, promised: Tensor, accuracies: Tensor, much: Tensor, looks: int, step: float = STEP,
    best: bool = False,
) -> Refreshed:  # fmt: skip
    """Return models with as much of the server's as their promises (n,) allow, or the `best` that they allow.

    A model on its way to a better one is often worse than both: training is served by what is newest, a reward by what
    is best.

    The search begins at what fitted last time (n,) and moves by the square root of `step`, then by its square root,
    and so on, up where a candidate fits and down where none does. A model whose accuracy (n,) is above its promise
    already, as the promise fell, gets no better by this: nothing that was handed out can be taken back.
    """
    found = Refreshed(order.own, accuracies, much)
    if not len(order.own):
        return found
    bound, fitted = torch.maximum(promised, accuracies), torch.zeros_like(much)
    reached = accuracies
    for _ in range(looks):
        models, metric = order.score(much)
        scores = metric.to(bound)
        small = scores <= bound
        fits = small & (scores > reached if best else much > fitted)
        reached = torch.where(fits, scores, reached)
        fitted = torch.where(fits, much, fitted)
        found = Refreshed(
            torch.where(fits[:, None], models, found.models),
            torch.where(fits, scores, found.accuracies),
            torch.where(fitted > 0, fitted, much),
        )
        step = step**0.5
        much = torch.where(small, much * step, much / step).clamp(order.least, order.most)
    return found
