"""The multilayer perceptron of FedSAC and FedRAC."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from cofair.errors import UsageError
from cofair.models.stack import Stack


class MLP(Stack):
    """Perceptron d-200-200-C with ReLU; every hidden unit is a neuron."""

    def __init__(self, input_shape: Sequence[int], classes: int, *, hidden: Sequence[int] = (200, 200)) -> None:
        """Build a stack for inputs of any shape, which are flattened."""
        if not isinstance(hidden, list | tuple) or any(type(width) is not int or width < 1 for width in hidden):
            raise UsageError(f"Model 'mlp' got hidden = {hidden!r}: give a list of widths from 1, as [200, 200].")
        layers: list[nn.Module] = [nn.Flatten()]
        widths = [math.prod(input_shape), *hidden]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], classes))
