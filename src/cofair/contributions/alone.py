"""Standalone accuracy: how good a model a client can train without the others.

The contribution of FedSAC, FedRAC and the papers they follow. They measure it on the test set; a real server
can measure it on its validation set.
"""

from torch import Tensor

from cofair.scoring.scorer import Scorer


def scores(scorer: Scorer, alone: Tensor) -> Tensor:
    """Score the models (N, D) that the clients train alone."""
    return scorer.score(alone).metric
