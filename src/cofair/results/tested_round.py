"""A tested round, as the journal writes it: what was measured, the models delivered, what was counted."""

from dataclasses import dataclass

from torch import Tensor

from cofair.engine.protocol import Delivered
from cofair.neurons.map import NeuronMap
from cofair.results.record import Record


@dataclass(frozen=True)
class TestedRound:
    """What was measured in a round, the models delivered, and what was counted since the test before."""

    record: Record
    delivered: Delivered
    names: tuple[str, ...]  # of the clients
    contributions: Tensor  # (N,) that the method uses
    took_part: list[int]  # rounds in which each client's upload counted
    refused: tuple[tuple[int, int, str], ...]  # round, client, why
    neurons: NeuronMap | None
