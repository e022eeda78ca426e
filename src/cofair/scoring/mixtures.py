"""Scores of models that have some blocks of parameters from one model and the rest from another."""

import torch
from torch import Tensor

from cofair.engine.linear_stack import LinearStack
from cofair.models.blocks import Blocks
from cofair.scoring.scorer import FIRST_OUTPUTS, Scorer


class Mixtures:
    """Rows `own` (n, D), of which some blocks are taken from a `whole` row (D,).

    What the first layer of a linear stack puts out for a mixture of whole rows of its weights is the same mixture of
    what it puts out for both models: on a CPU, where most of the time goes into this layer, it is computed once.
    """

    def __init__(self, scorer: Scorer, whole: Tensor, own: Tensor, blocks: Blocks) -> None:
        """Prepare to score mixtures."""
        self.scorer, self.whole, self.own, self.blocks = scorer, whole, own, blocks
        self._firsts: tuple[Tensor, Tensor, slice] | None = None
        stack = scorer.stack
        if stack is None or own.is_cuda or not len(own):
            return
        where = stack.rows_of_first(blocks)
        if where is None or (1 + len(own)) * (where.stop - where.start) * len(scorer.samples) * 8 > FIRST_OUTPUTS:
            return
        both = stack.first(torch.cat([whole[None], own]), scorer.samples.x)
        self._firsts = both[:1], both[1:], where

    @torch.no_grad()
    def score(self, taken: Tensor) -> tuple[Tensor, Tensor]:
        """Return the models (n, D) with the blocks `taken` (n, B) from the whole row, and their metric (n,)."""
        rows = torch.where(self.blocks.spread(taken), self.whole, self.own)
        if self._firsts is None:
            return rows, self.scorer.score(rows).metric
        stack = self.scorer.stack
        assert isinstance(stack, LinearStack)
        whole, own, where = self._firsts
        outputs = stack.after_first(stack.layout.views(rows), torch.where(taken[:, None, where], whole, own))
        return rows, self.scorer.problem.metric(outputs, self.scorer.samples.y)
