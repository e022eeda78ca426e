"""Standalone accuracy: how good a model a client can train without the others.

The contribution of FedSAC, FedRAC and the papers they follow. They measure it on the test set; a real server
can measure it on its validation set.
"""

from torch import Tensor

from cofair.engine.scoring import Scorer
from cofair.methods import Server


def standalone(server: Server, scorer: Scorer) -> Tensor:
    """Score the models that the clients train alone."""
    return scorer.score(server.alone()).metric
