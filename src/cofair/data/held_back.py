"""The part of its data that each client holds back, to choose among models by samples that trained none of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cofair.data.federation import Federation, Samples
from cofair.data.places import shuffled

SHARE = 5  # one sample of so many is held back


@dataclass(frozen=True)
class Divided:
    """A federation whose clients have what they train on, and the samples that all of them hold back.

    Client i holds back the samples at `places[i]`; who has one sample alone trains on it and holds back none.
    """

    federation: Federation
    samples: Samples
    places: tuple[Tensor, ...]


def divided(federation: Federation, seed: int) -> Divided:
    """Divide each client's data, a fifth of it and at least one sample held back, drawn for the client's name."""
    mixed = [shuffled(federation, i, "held back", seed) for i in range(len(federation))]
    counts = [max(1, len(own) // SHARE) if len(own) > 1 else 0 for own in mixed]
    kept = [own[count:].sort().values for own, count in zip(mixed, counts, strict=True)]
    back = torch.cat([own[:count] for own, count in zip(mixed, counts, strict=True)])
    left = torch.cat(kept)
    smaller = federation.replaced(
        rows=federation.rows[left], labels=federation.labels[left], sizes=torch.tensor([len(own) for own in kept])
    )
    samples = Samples(federation.inputs[federation.rows[back]], federation.labels[back])
    return Divided(smaller, samples, torch.split(torch.arange(len(back)), counts))
